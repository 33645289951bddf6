"""The names of the software CUDA runtime's errors, read from headers."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "backing/gpu/software/cudart/error_names.py"
spec = importlib.util.spec_from_file_location("error_names", SCRIPT)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

HEADER = """
enum cudaOther { other = 3 };
enum __device_builtin__ cudaError
{
    /** Not cudaErrorOfAComment = 7, though it reads like one. */
    cudaSuccess        =      0,
    cudaErrorFirst     =      1,  // not cudaErrorAside = 8
    cudaErrorAlias     =      1,
    cudaErrorHex       =   0x2a
};
"""


def test_names_are_those_of_the_enum_one_of_each_value():
    assert module.error_names(HEADER) == ["cudaSuccess", "cudaErrorFirst", "cudaErrorHex"]


@pytest.mark.parametrize("header", ["", "enum cudaError", "enum cudaErrorOther { a = 1 };"])
def test_a_header_without_them_is_said(header, tmp_path):
    path = tmp_path / "driver_types.h"
    path.write_text(header)
    done = subprocess.run([sys.executable, SCRIPT, path, tmp_path / "out"], capture_output=True,
                          text=True)
    assert done.returncode == 1 and done.stderr == f"{path}: no enum cudaError\n"
    assert not (tmp_path / "out").exists()
