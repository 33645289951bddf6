"""README's tables say what is so: torch's settings word for word, and every call by its name. And
no public name of torch.cuda.memory or torch.accelerator is without a call."""

import ast
import subprocess

import compare
import table
from test_answers import settings  # noqa: F401  (a fixture)


def test_settings(settings):
    made = table.settings_table(settings)
    assert "`expandable_segments`" in made and "unknown" not in made
    readme = table.README.read_text(encoding="utf-8")
    assert table.between(readme, table.SETTINGS) == made


def test_every_call_is_in_readme(settings):
    readme = table.between(table.README.read_text(encoding="utf-8"), table.CALLS)
    listed = {line.split(" | ")[0][2:] for line in readme.splitlines() if line.startswith("| ")}
    calls = {table.words(name) for path in compare.files()
             for name in compare.calls_of(path, settings)}
    assert calls and calls <= listed  # else run table.py


def names_used():
    used = set()
    for path in compare.files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                used.add(node.attr)
            elif isinstance(node, ast.ImportFrom):
                used.update(alias.name for alias in node.names)
    return used


def test_every_public_name_has_a_call(settings):
    code = ("import torch\n"
            "print(*torch.cuda.memory.__all__, *torch.accelerator.__all__)")
    names = subprocess.run([compare.PYTHON, "-c", code], env=settings, capture_output=True,
                           text=True, check=True).stdout.split()
    assert len(names) > 40
    assert set(names) - names_used() == set()
