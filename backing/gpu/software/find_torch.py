#!/usr/bin/env python3
"""Prints, as one JSON object, where the running interpreter's PyTorch is and how to build with it.

    PYTHON backing/gpu/software/find_torch.py [--lines]

With --lines: a line per key, KEY<tab>VALUE, lists joined by ":" (Meson reads no JSON).

torch is located, never imported, so that this costs milliseconds. Keys: found, reason (when not
found), python, site_packages, version, version_major, version_minor, cuda, include_dirs, lib_dirs,
cuda_include_dir, cuda_crt_dir, cuda_lib_dir, cudart_soname, cxx11_abi. Ends with status 0 even when
there is no torch: `found` says so.
"""

import glob
import json
import os
import re
import sys
import sysconfig


def candidates():
    """Folders that may hold torch: the import path, then the interpreter's own site-packages (an
    isolated package build hides them from the import path)."""
    paths = [path for path in sys.path[1:] if path]
    paths += [sysconfig.get_path("platlib"), sysconfig.get_path("purelib")]
    paths += [os.path.join(sys.prefix, name, "python%d.%d" % sys.version_info[:2], "site-packages")
              for name in ("lib", "lib64")]
    return list(dict.fromkeys(paths))


def read_version(torch):
    with open(os.path.join(torch, "version.py"), encoding="utf-8") as file:
        text = file.read()
    version = re.search(r"^__version__\s*=\s*'([^']+)'", text, re.M)
    cuda = re.search(r"^cuda\s*(?::[^=]*)?=\s*'([^']+)'", text, re.M)
    return version and version.group(1), cuda and cuda.group(1)


def cuda_folders(site_packages):
    """The wheel's own headers first, then a toolkit's."""
    roots = sorted(glob.glob(os.path.join(site_packages, "nvidia", "cu[0-9]*")), reverse=True)
    roots.append(os.path.join(site_packages, "nvidia", "cuda_runtime"))
    roots += [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    roots.append("/usr/local/cuda")
    for root in roots:
        if os.path.isfile(os.path.join(root, "include", "cuda_runtime_api.h")):
            libraries = [os.path.join(root, name) for name in ("lib", "lib64")]
            return os.path.join(root, "include"), next(filter(os.path.isdir, libraries), "")
    return "", ""


def crt_folder(site_packages, cuda_include):
    """Holds crt/host_defines.h, which cuda_runtime_api.h includes: torch's wheels leave it out, the
    Triton that comes with them has it."""
    folders = [cuda_include, os.path.join(site_packages, "triton", "backends", "nvidia", "include"),
               "/usr/local/cuda/include", "/usr/local/include", "/usr/include"]
    return next((folder for folder in folders
                 if os.path.isfile(os.path.join(folder, "crt", "host_defines.h"))), "")


def find():
    result = {"found": False, "python": sys.executable}
    torch = next((os.path.join(path, "torch") for path in candidates()
                  if os.path.isfile(os.path.join(path, "torch", "version.py"))), None)
    if torch is None:
        return dict(result, reason="no torch in " + sys.executable)
    version, cuda = read_version(torch)
    result.update(site_packages=os.path.dirname(torch), version=version or "", cuda=cuda or "")
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    if not numbers:
        return dict(result, reason="no version in " + os.path.join(torch, "version.py"))
    library = os.path.join(torch, "lib")
    includes = [os.path.join(torch, "include"),
                os.path.join(torch, "include", "torch", "csrc", "api", "include")]
    cuda_include, cuda_library = cuda_folders(os.path.dirname(torch))
    result.update(version_major=int(numbers.group(1)), version_minor=int(numbers.group(2)),
                  include_dirs=includes, lib_dirs=[library],
                  cuda_include_dir=cuda_include, cuda_lib_dir=cuda_library)
    if not os.path.isfile(os.path.join(includes[0], "ATen", "ATen.h")):
        return dict(result, reason="torch has no headers: " + includes[0])
    if not os.path.isfile(os.path.join(library, "libc10_cuda.so")):
        return dict(result, reason="torch %s is built without CUDA" % version)
    if not cuda_include:
        return dict(result, reason="no cuda_runtime_api.h (torch's wheel, CUDA_HOME, "
                                   "/usr/local/cuda)")
    result["cuda_crt_dir"] = crt_folder(os.path.dirname(torch), cuda_include)
    if not result["cuda_crt_dir"]:
        return dict(result, reason="no crt/host_defines.h (package nvidia-cuda-crt, or a toolkit)")
    with open(os.path.join(library, "libc10.so"), "rb") as file:
        result["cxx11_abi"] = b"cxx1112basic_string" in file.read()
    with open(os.path.join(library, "libc10_cuda.so"), "rb") as file:
        soname = re.search(rb"libcudart\.so\.\d+", file.read())
    result["cudart_soname"] = soname.group(0).decode() if soname else ""
    return dict(result, found=True)


def main():
    result = find()
    if sys.argv[1:] == ["--lines"]:
        for key, value in result.items():
            print("%s\t%s" % (key, ":".join(value) if isinstance(value, list) else value))
    else:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
