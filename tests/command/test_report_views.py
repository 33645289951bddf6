"""`firn report`: that what is drawn, hovered, found and told agrees, at every zoom; that small and
odd traces have a page too."""

import shutil

import pytest
from firn_command import ROOT
from made_trace import MIB, write_trace
from report_pages import SECOND, needs_chromium, seconds, shown, table

pytestmark = needs_chromium
BEGIN = (0, "begin,0,0,0,0,pid=1;at=1;policy=age;host=1;store=0;command=x")

# The words that the canvas shows, as they are drawn from here on.
SPY = """(() => {
  window.written = [];
  const own = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    const wide = this.measureText(text).width;
    const left = {center: x - wide / 2, right: x - wide}[this.textAlign];
    written.push({text, y, left: left ?? x, right: (left ?? x) + wide});
    own.call(this, text, x, y);
  };
})()"""


def hovered(page, x, y):
    """What is told there (canvas coordinates); empty: nothing."""
    left, top = page.evaluate("(box => [box.left, box.top])(canvas.getBoundingClientRect())")
    page.mouse("mouseMoved", left + x, top + y)
    return page.evaluate("tip.hidden ? '' : tip.textContent")


def test_names_that_the_page_itself_uses(page_of, trace):
    words = "@JS@ @COLUMNS@ @ABOUT@ @TITLE@ @CSS@ $& $1 \\u003c"
    path = trace((0, f"begin,0,0,0,0,pid=1;at=1;policy=age;host=1;store=0;command={words}"),
                 (10, "alloc,0,0,4096,1000,"), (20, "end,0,0,0,0,budget=1"),
                 name="@TITLE@ @CSS@ & <b>.csv")
    with shown(page_of(path)) as page:
        page.drawn()
        assert page.evaluate("document.querySelector('h1').textContent") == path.name
        assert words in page.evaluate("document.getElementById('command').textContent")
        assert page.complaints() == []


@pytest.mark.parametrize("rows, says", [
    ([BEGIN], "is incomplete"),  # killed before it allocated
    ([BEGIN, (5, "end,0,0,0,0,")], None),
    ([(0, "alloc,0,0,4096,1000,")], "is incomplete"),  # one event
    ([(0, "sample,0,0,0,0,resident=1")], "is incomplete"),
    ([(0, "begin,0,0,0,0,pid=1;at=999999999999999999;command=x"), (3, "free,2,0,1,1,")],
     "is incomplete"),
])
def test_next_to_nothing(page_of, trace, rows, says):
    with shown(page_of(trace(*rows), says)) as page:
        page.drawn()
        for key in ("+", "-", ">", "<", "ArrowLeft", "ArrowUp", "Home", "Enter"):
            page.evaluate(f"canvas.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}'}}))")
        page.evaluate("searchFor('0x1000')")
        page.drawn()
        for y in (60, 250, 380, 600):
            hovered(page, 300, y)
        assert page.evaluate("Object.values(view).every(Number.isFinite)")
        assert "NaN" not in page.evaluate("document.body.innerText")
        if not says:
            assert "Nothing was allocated." in page.evaluate(
                "document.getElementById('budgets').innerText")
        assert page.complaints() == []


def test_what_is_hovered_is_what_is_drawn(page_of, tmp_path):
    write_trace(tmp_path / "job.csv", 5000, seed=4)
    with shown(page_of(tmp_path / "job.csv")) as page:
        page.drawn()
        for zoomed in (False, True):
            if zoomed:
                page.evaluate("setTimes(device.ends * 0.4, device.ends * 0.41); "
                              "setPlaces(device.places * 0.2, device.places * 0.5)")
            wrong = page.evaluate("""(() => {
              const width = trackWidth(), {top, height} = TRACKS[3], wrong = [];
              const codes = blockCodes(device, width, height);
              for (let at = 7; at < codes.length; at += 997) {
                if (!codes[at]) continue;
                const x = at % width, y = Math.floor(at / width), drawn = WHERE[codes[at] - 1];
                const told = textAt(LEFT + x, top + y, width);
                if (!told.startsWith(drawn + ' for ')) wrong.push([x, y, drawn, told]);
              }
              return wrong;
            })()""")
            assert wrong == []


def test_every_wait_is_seen_however_much_is_shown(page_of, tmp_path):
    """A block that was waited for is so in the picture, in whichever part of a pixel that was."""
    write_trace(tmp_path / "job.csv", 24_000, seed=6)
    with shown(page_of(tmp_path / "job.csv")) as page:
        page.drawn()
        hidden, count = page.evaluate("""(() => {
          const {life, stretch} = device, width = 900, height = 360, hidden = [];
          const codes = blockCodes(device, width, height);
          let count = 0;
          for (let i = 0; i < stretch.count; ++i) {
            if (stretch.where[i] !== FAULTING) continue;
            ++count;
            const x = Math.floor(stretch.begin[i] / device.ends * width);
            const middle = life.place[stretch.life[i]] + life.rows[stretch.life[i]] / 2;
            const y = Math.floor(height * (1 - middle / device.places));
            if (codes[y * width + x] !== FAULTING + 1) hidden.push([i, x, y, codes[y * width + x]]);
          }
          return [hidden, count];
        })()""")
        assert count > 40 and hidden == []


def test_waits_are_a_part_of_the_time(page_of, trace):
    """A hundred waits of 1 us within 100 ms are .1 % of it, not all of it; one of them is seen."""
    waits = [(100_000_000 + i * 1_000_000, "stall,0,1,0,1000,aten::mm") for i in range(100)]
    long = [(5 * SECOND, "stall,0,1,0,500000000,aten::add")]
    path = trace(BEGIN, (1, "alloc,0,0,4096,1000,"), *waits, *long,
                 (10 * SECOND, "end,0,0,0,0,budget=1"))
    high = """(() => {
      const {top, height} = TRACKS[2], pen = canvas.getContext('2d'), width = trackWidth();
      const {data} = pen.getImageData(LEFT, top, width, height), out = [];
      for (let x = 0; x < width; ++x) {
        let high = 0;
        for (let y = 0; y < height; ++y) {
          const at = 4 * (y * width + x);
          high += data[at] > 180 && data[at + 1] < 120;
        }
        out.push(high);
      }
      return [Math.max(...out.slice(0, width / 4)), Math.max(...out.slice(width / 4)), height];
    })()"""
    with shown(page_of(path)) as page:
        page.drawn()
        short, all_of_it, height = page.evaluate(high)
        assert short == 1 and all_of_it == height
        # What is searched for is a part of all, which stays as it was, faded.
        page.evaluate("searchFor('aten::mm')")
        page.drawn()
        short, all_of_it, _ = page.evaluate(high)
        assert short == 1 and all_of_it == 0
        assert page.evaluate("waitsPerPixel(device, 100).all[47]") == pytest.approx(1)


def test_a_row_finds_its_own_waits(page_of, trace):
    """Not those of names that go on where it ends."""
    path = trace(BEGIN, (0, "alloc,0,0,4194304,2097152,"), (1, "made,0,0,4194304,0,aten::add"),
                 (2, "alloc,0,0,8388608,2097152,"), (100, "stall,0,1,8388608,10,aten::add"),
                 (200, "stall,0,1,4194304,10,aten::add_"),
                 (300, "stall,0,1,4194304,10,aten::addmm"),
                 (400, "stall,0,1,0,90,aten::add"), (401, 'site,0,1,4,120,"a.py:1 in f"'),
                 (500, "stall,0,2,0,5,"), (600, "pin,0,0,8388608,2097152,firn.pin()"),
                 (700, "end,0,0,0,0,budget=1"))
    with shown(page_of(path)) as page:
        page.drawn()

        def click(name, row):
            page.evaluate(f"document.querySelectorAll('#{name} tbody tr')[{row}].click()")
            return page.evaluate("document.getElementById('found').textContent")

        assert [row[:2] for row in table(page, "operators")][0] == ["aten::add", "2"]
        assert click("operators", 0) == "2 blocks, 2 waits"
        assert page.evaluate("input.value") == '"aten::add"'
        outside = [row[0] for row in table(page, "operators")].index("outside operators")
        assert click("operators", outside) == "0 blocks, 1 waits"
        untold = [row[0] for row in table(page, "sites")].index("not told")
        assert click("sites", untold) == "0 blocks, 1 waits"
        assert click("pinned", 0) == "1 blocks, 1 waits"  # those for what was pinned
        page.evaluate("searchFor('aten::add')")
        assert page.evaluate("search.waits") == 4


def test_the_closest_view_stays_where_it_is(page_of, tmp_path):
    write_trace(tmp_path / "job.csv", 5000)
    with shown(page_of(tmp_path / "job.csv")) as page:
        page.drawn()
        page.evaluate("setTimes(1000000, 1000020); setPlaces(1000, 1004)")
        before = page.evaluate("[view.from, view.to, view.low, view.high]")
        page.evaluate("for (let i = 0; i < 50; ++i) { zoom(0.5, LEFT + 700); "
                      "zoomPlaces(0.5, TRACKS[3].top + 30); }")
        assert page.evaluate("[view.from, view.to, view.low, view.high]") == pytest.approx(before)
        page.evaluate("everything(); zoom(2, LEFT + 700)")
        assert page.evaluate("view.from === 0 && view.to === device.ends")


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_times_are_told_apart_and_do_not_meet(page_of, trace, width):
    path = trace(BEGIN, (0, "alloc,0,0,4194304,2097152,"), (4 * SECOND, "end,0,0,0,0,budget=1"))
    with shown(page_of(path), width=width, height=900) as page:
        page.drawn()
        page.evaluate(SPY)
        for span in (4 * SECOND, 3_700_000, 999, 20):
            times = page.evaluate(f"""(() => {{
              setTimes(1234567890, 1234567890 + {span});
              written.length = 0;
              draw();
              return written.filter(each => each.y > TRACKS[3].top + TRACKS[3].height + 8);
            }})()""")
            assert len(times) >= 2 or width == 360, times
            assert len({each["text"] for each in times}) == len(times)
            for left, right in zip(times, times[1:]):
                assert left["right"] + 4 < right["left"], (span, left, right)
            assert all(0 <= each["left"] and each["right"] <= width for each in times)
        # So are the times in the tip.
        page.evaluate("setTimes(1234567890, 1234567910); draw()")
        assert page.evaluate("textAt(LEFT + 1, TRACKS[1].top + 5, 100)").startswith("1.2345678")


def test_samples_are_told_as_they_are_drawn(page_of, trace):
    """Many in one pixel: the one with most away. Before the first: nothing is known."""
    def sample(ns, resident, host, out):
        return ns, ("sample,0,0,0,0,resident=%d;away_host=%d;away_nvme=0;budget=%d;allocated=%d;"
                    "out=%d;in=0;written=0;read=0;flight=0" % (resident, host, 64 * MIB,
                                                               resident + host, out))

    path = trace(BEGIN, (0, "alloc,0,0,4194304,2097152,"),
                 sample(5 * SECOND, 20 * MIB, MIB, 0),
                 sample(5 * SECOND + 1000, MIB, 30 * MIB, MIB),
                 sample(5 * SECOND + 2000, 20 * MIB, 2 * MIB, 2 * MIB),
                 sample(6 * SECOND, 20 * MIB, 2 * MIB, 102 * MIB),
                 (10 * SECOND, "end,0,0,0,0,budget=1"))
    with shown(page_of(path)) as page:
        page.drawn()
        middle = page.evaluate("LEFT + Math.floor(trackWidth() / 2)")
        assert "1.00 MiB on the device (with what is cached), 30.0 MiB in host memory" \
            in hovered(page, middle, 60)
        assert hovered(page, 150, 60) == ""
        assert page.evaluate("tiersPerPixel(device.sample, 100)[0][10]") == 0
        assert page.evaluate("mostPerPixel(device.sample, 'budget', 100)[10]") is None  # NaN
        told = hovered(page, middle + 50, 250)
        assert "100 MiB/s out to the host, 0 B/s in" in told
        assert "0 B/s out to the host" in hovered(page, 150, 250)


def test_trips(page_of, trace):
    """A block that comes back ahead of its use and is waited for before it is there came once."""
    block = "0,0,4194304,2097152,"
    names = ("alloc spill copied_out prefetch fault arrived spill copied_out prefetch unfault "
             "fault arrived spill copied_out fault")
    rows = [(i * 1000, f"{name},{block}") for i, name in enumerate(names.split())]
    path = trace(BEGIN, *rows, (30_000, "free," + block), (40_000, "end,0,0,0,0,budget=1"))
    with shown(page_of(path)) as page:
        page.drawn()
        assert "was away and came back 2 times" in page.evaluate("lifeText(device, 0)")


def test_what_was_pinned_in_the_end(page_of, trace):
    sample = "sample,0,0,0,0,resident=1"
    path = trace(BEGIN, (0, "alloc,0,0,4194304,2097152,"), (SECOND, sample),
                 (SECOND, "pinned,0,0,0,2097152,firn.pin()"), (SECOND, "pinned,0,0,0,4096,other"),
                 (2 * SECOND, sample), (2 * SECOND, "pinned,0,0,0,4096,other"),
                 (5 * SECOND, sample), (5 * SECOND, "end,0,0,0,0,budget=1"))
    with shown(page_of(path)) as page:
        page.drawn()
        rows = {row[0].split("\n")[0]: row[1:3] for row in table(page, "pinned")}
        assert rows == {"firn.pin()": ["2.00 MiB", "0 B"], "other": ["4.00 KiB", "0 B"]}


def test_keys_that_are_the_browsers_and_rows_by_keys(page_of, trace):
    path = trace(BEGIN, (0, "alloc,0,0,4194304,2097152,"),
                 (9 * SECOND, "stall,0,1,4194304,1000,aten::mm"),
                 (9 * SECOND, "notice,0,0,0,0,thrash: some"), (10 * SECOND, "end,0,0,0,0,budget=1"))
    with shown(page_of(path)) as page:
        page.drawn()

        def press(key, on, **more):
            return page.evaluate(
                f"{on}.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}', bubbles: true, "
                f"cancelable: true, {', '.join(f'{name}: true' for name in more)}}}))")

        whole = page.evaluate("[view.from, view.to]")
        for held in ("ctrlKey", "altKey", "metaKey"):
            for key in ("+", "-", "ArrowLeft", "/"):
                assert press(key, "canvas", **{held: True})  # not taken
        assert page.evaluate("[view.from, view.to]") == whole
        assert not press("+", "canvas") and page.evaluate("view.to") != whole[1]
        press("Enter", "document.querySelector('#said p')")
        assert page.evaluate("secondsOf(view.from) > 3 && secondsOf(view.to) <= 10")
        press("Enter", "document.querySelector('#operators tbody tr')")
        assert page.evaluate("search.waits") == 1
        press("Escape", "canvas")
        assert page.evaluate("search.text + input.value") == ""


def test_the_mouse(page_of, tmp_path):
    write_trace(tmp_path / "job.csv", 5000)
    with shown(page_of(tmp_path / "job.csv"), height=600) as page:
        page.drawn()
        left, top = page.evaluate("(box => [box.left, box.top])(canvas.getBoundingClientRect())")
        # Everything is shown: a wheel that goes away from it scrolls the page.
        page.mouse("mouseWheel", left + 700, top + 100, deltaX=0, deltaY=200)
        page.wait_for("window.scrollY > 0")
        page.evaluate("window.scrollTo(0, 0)")
        # Only the first button drags, and only while it is held.
        page.evaluate("setTimes(device.ends * 0.4, device.ends * 0.5)")
        before = page.evaluate("view.from")
        page.mouse("mousePressed", left + 700, top + 100, button="right", buttons=2, clickCount=1)
        page.mouse("mouseMoved", left + 400, top + 100, button="right", buttons=2)
        page.mouse("mouseReleased", left + 400, top + 100, button="right", clickCount=1)
        page.evaluate("""canvas.dispatchEvent(new PointerEvent('pointerdown', {button: 0,
            clientX: 300, clientY: 300, pointerId: 1}))""")
        page.evaluate("canvas.dispatchEvent(new PointerEvent('pointercancel', {pointerId: 1}))")
        page.mouse("mouseMoved", left + 500, top + 100)
        assert page.evaluate("view.from") == before
        # The tip is of what is under the mouse, also where that moves away under it.
        old = hovered(page, 700, 500) or hovered(page, 700, 520)
        page.mouse("mouseWheel", left + 700, top + 520, deltaX=0, deltaY=-900)
        page.drawn()
        page.evaluate("setTimes(0, 20)")
        page.drawn()
        assert page.evaluate("tip.hidden || tip.textContent !== " + repr(old))


def test_the_smallest_blocks_are_apart(page_of, trace):
    blocks = [4096 * i for i in range(1, 9)]
    path = trace(BEGIN, *[(i, f"alloc,0,0,{block},{4 + i},") for i, block in enumerate(blocks)],
                 (SECOND, "end,0,0,0,0,budget=1"))
    with shown(page_of(path)) as page:
        page.drawn()
        told = [hovered(page, 700, 438 + 360 * (2 * i + 1) / 18) for i in range(1, 9)]
        assert len({words.split("\n")[1] for words in told}) == 8, told


def test_another_device_and_another_address(page_of, trace):
    path = trace((0, "alloc,0,0,4096,2097152,"), (10, "alloc,1,0,8192,1048576,"),
                 (30, "end,0,0,0,0,budget=1"), (1000, "end,1,0,0,0,budget=2"))
    with shown(page_of(path)) as page:
        page.drawn()
        page.evaluate("searchFor('>1KiB')")
        page.evaluate("const choice = document.getElementById('device'); choice.value = '1'; "
                      "choice.dispatchEvent(new Event('change'))")
        assert page.evaluate("[input.value, search.text, search.blocks]") == [">1KiB", ">1KiB", 1]
        page.evaluate("location.hash = '#device=0&t=0.0000001-0.0000002&find=%230'")
        page.wait_for("device.number === 0 && choice.value === '0' && input.value === '#0'")
        assert page.evaluate("[view.from, view.to]") == pytest.approx([100, 200], rel=1e-6)
        page.evaluate("location.hash = '#t=1.2.3-4.&y=.-.'")  # nonsense: everything
        page.wait_for("input.value === ''")
        assert page.evaluate("view.from === 0 && view.to === device.ends")


def test_a_budget_far_away(page_of, trace):
    with shown(page_of(trace(BEGIN, (9, "end,0,0,0,0,budget=1")))) as page:
        page.drawn()
        chart = """(budget => {
          const points = [1, 2].map(i => ({budget_bytes: i * 2 ** 30, slow_down: 3 - i}));
          const made = budgetCurve(points, budget);
          return [[...made.querySelectorAll('circle')].map(each => +each.getAttribute('cx')),
                  made.querySelectorAll('.budget').length, made.textContent];
        })"""
        (low, high), lines, _ = page.evaluate(chart + "(1.9 * 2 ** 30)")
        assert lines == 1
        (far_low, far_high), lines, words = page.evaluate(chart + "(80 * 2 ** 30)")
        assert lines == 0 and "80.0 GiB" in words and "far" in words
        assert [far_low, far_high] == [low, high]
        # What does not run at a budget is said in the other columns' place.
        page.evaluate("about.budgets = {machine: 'm', points: [{budget_bytes: 1, error: 'no'}]}; "
                      "showBudgets(device)")
        assert page.evaluate("[...document.querySelectorAll('#budgets tbody td')].map("
                             "cell => cell.colSpan)") == [1, 5]


def test_host_memory_that_is_not_the_runs(page_of, trace, tmp_path):
    for kind in ("kernels", "tensors"):
        shutil.copy(ROOT / f"tests/data/layers.{kind}.csv", tmp_path / f"job.{kind}.csv")
    path = trace((0, "begin,0,0,0,0,pid=1;at=1;policy=age;host=67108864;store=1;command=x"),
                 (1, "alloc,0,0,4096,2097152,"),
                 (9, "end,0,0,0,0,budget=400000000;peak_allocated=400000000"))
    with shown(page_of(path)) as page:
        page.drawn()
        assert "256MiB of host memory (this run had 64MiB), policy age" in page.evaluate(
            "document.getElementById('budgets').innerText")
        assert page.evaluate("document.querySelectorAll('#budgets circle').length") >= 2


def test_sizes_at_the_edge_of_a_unit(page_of, trace):
    with shown(page_of(trace(BEGIN, (9, "end,0,0,0,0,budget=1")))) as page:
        page.drawn()
        assert page.evaluate("[0, 1023, 1024, 2 ** 20 - 1, 2 ** 20, 2 ** 53].map(bytesText)") == [
            "0 B", "1023 B", "1.00 KiB", "1.00 MiB", "1.00 MiB", "8192 TiB"]


def test_more_rows_than_are_shown(page_of, trace):
    stalls = [(1000 * i, f"stall,0,1,0,{i},op{i}") for i in range(1, 19)]
    with shown(page_of(trace(BEGIN, *stalls, (90_000, "end,0,0,0,0,budget=1")))) as page:
        page.drawn()
        rows = table(page, "operators")
        assert len(rows) == 15 and rows[0][0] == "op18"
        rest = page.evaluate("document.querySelector('#operators p').innerText")
        assert rest.startswith("and 3 more: ") and seconds(rest[12:].removesuffix(
            " together")) == pytest.approx(6e-9)
