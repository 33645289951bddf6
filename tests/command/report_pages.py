"""Pages of `firn report` in headless Chromium, for tests."""

import pytest
from browser import Page, find_chromium

needs_chromium = pytest.mark.skipif(
    find_chromium() is None, reason="no chromium (bench/setup.sh --tests installs it)")
SECOND = 10**9


def shown(path, **size):
    return Page(path.as_uri(), **size)


def table(page, name):
    return page.evaluate(f"[...document.querySelectorAll('#{name} tbody tr')].map("
                         "row => [...row.cells].map(cell => cell.innerText))")


def seconds(text):
    number, unit = text.split()
    return float(number) * {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]
