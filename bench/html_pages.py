"""The benches' pages: bench/pages holds a template for each, and the style that they share."""

from __future__ import annotations

import base64
import pathlib
from typing import Any

import jinja2

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).resolve().parent / "pages"),
    autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined)


def png_url(image: bytes) -> str:
    """For a page that needs no other file."""
    return "data:image/png;base64," + base64.b64encode(image).decode()


def render(template: str, **values: Any) -> str:
    return _TEMPLATES.get_template(template).render(**values)
