"""`firn report`: what the page says of traces that were made up, looked at in headless Chromium. A
real trace: tests/torch/test_live_report.py."""

import json
import random
import re

import pytest
from browser import Page
from firn_command import refused
from made_trace import BEGIN_NS, HEADER, MIB, write_trace
from report_pages import SECOND, needs_chromium, seconds, shown, table


def test_bad_input(firn, tmp_path):
    out = str(tmp_path / "out.html")
    refused(firn("report"), "TRACE")
    refused(firn("report", "x.csv"), "-o")
    refused(firn("report", str(tmp_path / "none.csv"), "-o", out), "none.csv: No such file")
    refused(firn("report", str(tmp_path), "-o", out), "not a regular file")
    path = tmp_path / "job.csv"

    def given(text, *says):
        path.write_bytes(text.encode("latin-1"))
        refused(firn("report", str(path), "-o", out), "job.csv", *says)

    given("", "is empty")
    given("name,value\na,1\n", "job.csv:1: not a trace of firn run --trace")
    given("\x7fELF\0\0", "not a trace")
    given(HEADER[:20], "not a trace")
    given(HEADER, "holds no event")
    given(HEADER + "12,alloc,0", "holds no event")  # its only row is cut off
    given(HEADER + "1,alloc,0,0,4096,1,\n2,alloc,0\n3,free,0,0,4096,1,\n",
          "job.csv:3: has fewer than 7 fields")
    given(HEADER + "1,alloc,0,0,many,1,\n", "job.csv:2: a number is missing")
    given(HEADER + '1,pin,0,0,4096,1,"a"b"\n', "job.csv:2: a quote ends")
    path.write_text(HEADER + "1,alloc,0,0,4096,1,\n")
    refused(firn("report", str(path), "-o", str(tmp_path)), "is a directory")
    refused(firn("report", str(path), "-o", "/nowhere/out.html"), "/nowhere")
    refused(firn("report", str(path), "-o", str(path)), "is the trace itself")
    refused(firn("report", str(path), "-o", out, "--colors"), "--colors")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["job.csv"]


def test_one_file_that_names_no_other(page_of, tmp_path):
    write_trace(tmp_path / "job.csv", 3000)
    text = page_of(tmp_path / "job.csv").read_text()
    links = set(re.findall(r"(?:https?:)?//[\w.-]+\.[\w/.-]+", text))
    assert links <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(?:link|img|iframe)\b|<script[^>]*\bsrc=", text)


@needs_chromium
def test_what_words_hold_is_text(page_of, trace):
    """Names come from programs: they are no HTML, wherever they are shown."""
    evil = "</script><img src=x onerror=document.title='bad'>&lt;"
    path = trace((0, f"begin,0,0,0,0,pid=1;at=1;policy=age;host=1;store=0;command=run {evil}"),
                 (10, "alloc,0,0,4096,1000,"), (20, f"pin,0,0,4096,1000,{evil}"),
                 (1000, f"stall,0,1,4096,500,{evil}"), (1001, f'site,0,1,1,500,"{evil}, ""q"""'),
                 (2000, "end,0,0,0,0,budget=1"), name="job <b>.csv")
    with shown(page_of(path)) as page:
        page.drawn()
        assert page.evaluate("document.title") == "job <b>.csv - firn report"
        assert page.evaluate("document.querySelector('h1').textContent") == "job <b>.csv"
        assert evil in page.evaluate("document.getElementById('command').textContent")
        assert table(page, "operators")[0][0] == evil
        assert table(page, "sites")[0][0] == evil + ', "q"'
        assert table(page, "pinned")[0][0] == evil
        assert page.evaluate("document.querySelectorAll('img').length") == 0
        assert page.complaints() == []


@needs_chromium
@pytest.mark.parametrize("seed", range(3))
def test_blocks_are_where_the_trace_says(page_of, tmp_path, seed):
    """Against a model that reads the rows one by one."""
    path = tmp_path / "job.csv"
    write_trace(path, 5000, seed)
    where = {"alloc": 0, "spill": 1, "copied_out": 2, "written": 3, "dropped": 4, "fault": 5,
             "prefetch": 6, "remake": 7, "arrived": 0, "remade": 0}
    blocks, end = {}, 0
    for line in path.read_text().splitlines()[1:]:
        fields = line.split(",")
        now, event, block = int(fields[0]) - BEGIN_NS, fields[1], int(fields[4])
        end = now
        if event in where or event == "free":
            blocks.setdefault(block, []).append((now, where.get(event), int(fields[5])))
    rng = random.Random(seed)
    asked, expected = [], []
    for block, events in blocks.items():
        for _ in range(4):
            at = rng.randrange(end)
            last = [each for each in events if each[0] <= at][-1:]
            near = any(abs(each[0] - at) <= 2 for each in events)
            if near:
                continue
            asked.append([at, block + rng.randrange(events[0][2])])
            expected.append(last[0][1] if last and last[0][1] is not None else -1)
    with shown(page_of(path)) as page:
        page.drawn()
        found = page.evaluate("""%s.map(([ns, address]) => {
            const {life, stretch} = device, tick = ns / about.tick_ns;
            for (let i = 0; i < life.count; ++i) {
              if (address < life.address[i] || address >= life.address[i] + life.bytes[i]) continue;
              const place = life.place[i] + Math.floor((address - life.address[i]) / device.unit);
              setTimes(tick - 10, tick + 10);  // as close as it goes
              setPlaces(place - 2, place + 2);
              const x = Math.floor((tick - view.from) / (view.to - view.from) * 1000);
              const y = Math.floor((view.high - place - 0.5) / (view.high - view.low) * 400);
              const at = stretchAt(device, x, y, 1000, 400, 0);
              return at < 0 ? -1 : stretch.where[at];
            }
            return -2;
        })""" % json.dumps(asked))
        assert found == expected
        assert len(set(expected)) >= 4


@needs_chromium
def test_who_waited(page_of, tmp_path):
    made = write_trace(tmp_path / "job.csv", 40_000, seed=5)
    with shown(page_of(tmp_path / "job.csv")) as page:
        page.drawn()
        rows = {row[0]: row for row in table(page, "operators")}
        by_operator = {}
        for _, ns, operator in made.stalls:
            by_operator.setdefault(operator, []).append(ns / SECOND)
        assert set(rows) == set(by_operator)
        for operator, waits in by_operator.items():
            assert int(rows[operator][1].replace(",", "")) == len(waits)
            assert seconds(rows[operator][2]) == pytest.approx(sum(waits), rel=0.01)
            assert seconds(rows[operator][3]) == pytest.approx(max(waits), rel=0.01)
        # The folder once, not in every line.
        assert all(row[0].startswith("train.py:") and row[0].endswith(" in step, inner")
                   for row in table(page, "sites"))
        assert page.evaluate("document.getElementById('folder').textContent") == "in /home/u/"
        assert page.evaluate("document.querySelector('#sites td span').title").startswith(
            "/home/u/train.py:")
        longest = table(page, "longest")
        assert seconds(longest[0][1]) == pytest.approx(max(ns for _, ns, _ in made.stalls) / SECOND,
                                                       rel=0.01)
        (pinned,) = table(page, "pinned")
        assert pinned[0].startswith("its address was asked for (data_ptr())")
        assert pinned[0].endswith("firn.unpin(tensor) takes that back")  # what changes it
        assert pinned[1:] == ["24.0 MiB", "24.0 MiB", "1"]
        # A click on a wait shows it, and finds its block.
        page.evaluate("document.querySelector('#longest tbody tr').click()")
        page.drawn()
        span = page.evaluate("secondsOf(view.to - view.from)")
        assert span == pytest.approx(5 * seconds(longest[0][1]), rel=0.05)
        block = longest[0][4].split(",")[0].removeprefix("block ")
        assert page.evaluate("document.getElementById('find').value") == block
        assert page.complaints() == []


@needs_chromium
def test_search_zoom_and_hover(page_of, tmp_path):
    made = write_trace(tmp_path / "job.csv", 20_000, seed=2)
    with shown(page_of(tmp_path / "job.csv")) as page:
        page.drawn()

        def found(words):
            page.evaluate(f"searchFor({json.dumps(words)})")
            page.drawn()
            return page.evaluate("document.getElementById('found').textContent")

        of_mm = [block for block, _, operator in made.stalls if operator == "aten::mm"]
        assert found("aten::mm").startswith(f"{len(set(of_mm))} blocks, ")
        assert found("#3").startswith("1 blocks")
        assert found(">20MiB").startswith("40 blocks")
        assert found(hex((1 << 40) + 5 * 24 * MIB + 17)).startswith("1 blocks")
        assert found("no such word") == "0 blocks, 0 waits"
        # What was not searched for is faded; nothing is, again, without a search.
        found("#3")
        faded = "blockCodes(device, 200, 100).some(code => code > 8)"
        assert page.evaluate(faded)
        assert found("") == "" and not page.evaluate(faded)

        found("#3")
        page.evaluate("document.getElementById('next').click()")
        page.drawn()
        rows, place = page.evaluate("[device.life.rows[3], device.life.place[3]]")
        assert page.evaluate("view.low <= device.life.place[3] && view.high - view.low") \
            == pytest.approx(13 * rows, rel=0.5)
        # The middle of the blocks' track is block #3 now.
        left, top = page.evaluate("(box => [box.left, box.top])(canvas.getBoundingClientRect())")
        height = page.evaluate("TRACKS[3].top + TRACKS[3].height * (1 - (device.life.place[3] + "
                               "device.life.rows[3] / 2 - view.low) / (view.high - view.low))")
        page.mouse("mouseMoved", left + 700, top + height)
        tip = page.wait_for("!tip.hidden && tip.textContent")
        assert "block #3, 24.0 MiB at 0x" in tip and "pinned: its address was asked for" in tip

        before = page.evaluate("view.to - view.from")
        page.mouse("mouseWheel", left + 700, top + 100, deltaX=0, deltaY=-500)
        page.wait_for(f"view.to - view.from < {before} * 0.6")
        assert page.evaluate("location.hash").startswith("#t=") or page.wait_for(
            "location.hash.startsWith('#t=')")
        from_before = page.evaluate("view.from")
        page.mouse("mousePressed", left + 700, top + 100, button="left", buttons=1, clickCount=1)
        page.mouse("mouseMoved", left + 400, top + 100, button="left", buttons=1)
        page.mouse("mouseReleased", left + 400, top + 100, button="left", clickCount=1)
        page.wait_for(f"view.from > {from_before}")
        page.evaluate("document.getElementById('all').click()")
        page.drawn()
        assert page.evaluate("view.from === 0 && view.to === device.ends")
        assert page.complaints() == []


@needs_chromium
def test_the_address_holds_the_view(page_of, tmp_path):
    write_trace(tmp_path / "job.csv", 20_000)
    out = page_of(tmp_path / "job.csv")
    with Page(out.as_uri() + "#t=0.1-0.2&find=%3E20MiB") as page:
        page.drawn()
        assert page.evaluate("[secondsOf(view.from), secondsOf(view.to)]") \
            == pytest.approx([0.1, 0.2], rel=1e-3)
        assert page.evaluate("search.list.length") == 40


def test_the_name_that_simulate_takes(firn, tmp_path):
    write_trace(tmp_path / "job.csv", 200)
    pages = [tmp_path / "whole.html", tmp_path / "prefix.html"]
    for word, page in zip(("job.csv", "job"), pages):
        assert firn("report", str(tmp_path / word), "-o", str(page)).returncode == 0
    assert pages[0].read_bytes() == pages[1].read_bytes()


@needs_chromium
def test_a_killed_process(page_of, tmp_path):
    """What was written by then is shown, with a word about the rest."""
    path = tmp_path / "job.csv"
    write_trace(path, 20_000, ended=False)
    text = path.read_text()
    path.write_text(text[:len(text) * 2 // 3 - 7])
    assert not path.read_text().endswith("\n")
    with shown(page_of(path, "is incomplete")) as page:
        page.drawn()
        notice = page.evaluate("document.getElementById('notice').innerText")
        assert "trace is incomplete" in notice and "its last line was incomplete" in notice
        assert page.evaluate("device.life.count") > 1000
        assert "is cut off" in page.evaluate("document.getElementById('budgets').innerText") or \
            "kernels.csv is missing" in page.evaluate(
                "document.getElementById('budgets').innerText")


@needs_chromium
def test_several_devices_and_rows_of_other_versions(page_of, trace):
    path = trace((0, "alloc,0,0,4096,2097152,"), (10, "alloc,1,0,8192,1048576,"),
                 (15, "novelty,0,0,1,2,x=y"), (20, "touch,1,0,8192,1048576,write"),
                 (25, "free,0,0,77,1,"), (30, "end,0,0,0,0,budget=1"), (30, "end,1,0,0,0,budget=2"))
    with shown(page_of(path)) as page:
        page.drawn()
        assert not page.evaluate("document.getElementById('which').hidden")
        assert page.evaluate("[device.number, device.life.bytes[0]]") == [0, 2097152]
        page.evaluate("const choice = document.getElementById('device'); choice.value = '1'; "
                      "choice.dispatchEvent(new Event('change'))")
        page.drawn()
        assert page.evaluate("[device.number, device.life.bytes[0], device.life.touches[0]]") \
            == [1, 1048576, 1]
        assert page.evaluate("document.getElementById('notice').hidden")
        assert page.evaluate("document.getElementById('budgets').innerText") \
            == "Simulated for device 0 only."


@needs_chromium
def test_what_the_job_was_told_and_who_allocated(page_of, trace):
    path = trace((0, "begin,0,0,0,0,pid=1;at=1;policy=age;host=1;store=0;command=x"),
                 (0, "alloc,0,0,4194304,2097152,"), (1, "made,0,0,4194304,0,aten::mm"),
                 (2, "alloc,0,0,8388608,1000,"),
                 (9 * SECOND, 'notice,0,0,0,0,"thrash: 80 % of it, and <b>more</b>"'),
                 (10 * SECOND, "end,0,0,0,0,budget=1"))
    with shown(page_of(path)) as page:
        page.drawn()
        said = page.evaluate("[...document.querySelectorAll('#said p')].map(p => p.textContent)")
        assert said == ["9.00 s: thrash: 80 % of it, and <b>more</b>"]
        page.evaluate("document.querySelector('#said p').click()")
        assert page.evaluate("secondsOf(view.from) > 3 && secondsOf(view.to) <= 10")
        assert "allocated by aten::mm" in page.evaluate("lifeText(device, 0)")
        assert "below 1 MiB" in page.evaluate("lifeText(device, 1)")
        page.evaluate("searchFor('aten::mm')")
        assert page.evaluate("search.list") == [{"life": 0}]
        assert page.complaints() == []


@needs_chromium
@pytest.mark.parametrize("width", [360, 480, 800, 2400])
def test_every_width(page_of, tmp_path, width):
    write_trace(tmp_path / "job.csv", 5000)
    with Page(page_of(tmp_path / "job.csv").as_uri(), width=width, height=900) as page:
        page.drawn()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        # No color is without its word: beside the tracks' titles or below the picture.
        narrow = page.evaluate("document.getElementById('legend').classList.contains('shown')")
        assert narrow == (width < 1000)
        if narrow:
            words = page.evaluate("document.getElementById('legend').innerText")
            assert "on its way back, ahead of its use" in words
        assert page.complaints() == []


@needs_chromium
def test_light_and_dark(page_of, tmp_path):
    write_trace(tmp_path / "job.csv", 5000)

    with shown(page_of(tmp_path / "job.csv")) as page:
        page.drawn()
        assert page.evaluate("ink.paper") == "#ffffff"
        assert page.evaluate("PALETTE[0] & 255") == 255
        page.ask("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": "dark"}])
        page.wait_for("ink.paper !== '#ffffff'")  # drawn anew
        assert page.evaluate("PALETTE[0] & 255") < 64
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(227, 232, 238)"
        assert page.complaints() == []


@needs_chromium
def test_keys(page_of, tmp_path):
    write_trace(tmp_path / "job.csv", 20_000, seed=2)
    with shown(page_of(tmp_path / "job.csv")) as page:
        page.drawn()

        def press(key, **more):
            page.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **more)
            page.ask("Input.dispatchKeyEvent", type="keyUp", key=key)
            page.drawn()

        def look():
            return page.evaluate("[view.from, view.to, view.low, view.high]")

        page.evaluate("canvas.focus()")
        whole = look()
        press("+")
        press(">")
        closer = look()
        assert closer[1] - closer[0] < whole[1] - whole[0]
        assert closer[3] - closer[2] < whole[3] - whole[2]
        press("ArrowUp")
        press("ArrowRight")
        moved = look()
        assert moved[0] > closer[0] and moved[2] > closer[2]
        press("Home")
        assert look() == whole
        press("/", text="/")
        assert page.evaluate("document.activeElement === input && input.value") == ""
        page.ask("Input.insertText", text="#3")
        press("Enter")
        assert look() != whole and page.evaluate("search.list.length") == 1
        press("Escape")
        assert page.evaluate("search.text") == ""
        assert page.evaluate("document.activeElement === canvas")
        assert page.complaints() == []


@needs_chromium
def test_a_million_events(page_of, tmp_path):
    made = write_trace(tmp_path / "job.csv", 1_000_000)
    out = page_of(tmp_path / "job.csv")
    assert out.stat().st_size < 20 * MIB
    with shown(out) as page:
        page.drawn()
        figures = page.evaluate("document.getElementById('figures').innerText")
        assert f"{made.rows:,}" in figures
        # Everything is drawn on one canvas, however much it is.
        assert page.evaluate("document.querySelectorAll('*').length") < 1000
        colors = page.evaluate("new Set(blockCodes(device, 800, 360)).size")
        assert colors >= 4
        page.evaluate("setTimes(ticksOf(1), ticksOf(1.001)); draw()")
        assert page.evaluate("document.getElementById('range').textContent") \
            == "from 1.000000 s on, 1.00 ms long"
        assert page.complaints() == []
