"""Figures and pages that a job writes by itself: for monitoring, and where memory is refused."""

import html.parser
import socket
import textwrap

import pytest

REFUSED = """
    import torch
    kept = [torch.empty(32 << 20, dtype=torch.uint8, device="cuda") for _ in range(6)]
    kept[0] += 1
    for _ in range(%d):
        try:
            torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
            raise SystemExit("512 MiB were had of 256")
        except torch.cuda.OutOfMemoryError as error:
            assert "firn_budget" in str(error)
            print("refused")
"""
CONF = "backend:firn,firn_budget:256MiB,firn_host:32MiB"


class Whole(html.parser.HTMLParser):
    """The page's elements are closed in order; its text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text = [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_a_page_where_memory_is_refused(run, tmp_path):
    page = tmp_path / "oom.html"
    done = run(REFUSED % 1, conf=f"{CONF},firn_oom_page:{page}")
    assert done.stdout.count("refused") == 1
    text = Whole(page.read_text()).text
    assert "Tried to allocate 512.00 MiB" in text and "budget of 256MiB" in text
    assert "stays: not yet seen in an operator" in text
    assert "6 blocks of 1 MiB and more" in text
    assert str(page) in done.stderr
    assert oct(page.stat().st_mode & 0o777) == "0o600"


def test_it_lies_beside_a_trace(run, tmp_path):
    run(REFUSED % 1, conf=f"{CONF},firn_trace:{tmp_path}/job.csv")
    assert "Out of memory" in Whole((tmp_path / "job.oom.html").read_text()).text


def test_without_the_knob_there_is_none(run, tmp_path):
    done = run(REFUSED % 1, conf=CONF)
    assert ".html" not in done.stderr and list(tmp_path.glob("*.html")) == []


def test_one_that_cannot_be_written_is_said_once_and_harms_nothing(run):
    done = run(REFUSED % 40, conf=f"{CONF},firn_oom_page:/nowhere/oom.html")
    assert done.stdout.count("refused") == 40
    assert done.stderr.count("/nowhere/oom.html") == 1 and "firn_oom_page" in done.stderr


SHORT = "backend:firn,firn_budget:64MiB,firn_host:1GiB,firn_oom_page:oom.html"


def test_a_list_that_is_done_in_slices_is_no_refusal(run, tmp_path):
    done = run("""
        import torch
        params = [torch.nn.Parameter(torch.ones(1 << 20, device="cuda")) for _ in range(12)]
        optimizer = torch.optim.AdamW(params, foreach=True)
        for _ in range(2):
            for each in params:
                each.grad = torch.ones_like(each)
            optimizer.step()
        stats = torch.cuda.memory_stats()
        assert stats["num_ooms"] == 0, stats["num_ooms"]
        print("stepped", stats["allocated_bytes.all.peak"] >> 20)
    """, conf=SHORT)
    assert int(done.stdout.split()[-1]) >= 4 * 48, "nothing was beyond the budget"
    assert list(tmp_path.glob("*.html")) == [] and "out of memory" not in done.stderr


def test_an_operator_that_uses_host_memory_is_no_refusal(run, tmp_path):
    done = run("""
        import torch
        a, b = (torch.full((40 << 18,), value, device="cuda") for value in (1.0, 2.0))
        a.add_(b)
        assert torch.cuda.memory_stats()["num_ooms"] == 0
        print("equal", bool((a == 3).all()))
    """, conf=SHORT)
    assert done.stdout.split() == ["equal", "True"]
    assert list(tmp_path.glob("*.html")) == []


def test_an_address_that_cannot_be_given_is_a_refusal(run, tmp_path):
    done = run("""
        import torch
        a, b = (torch.ones(40 << 18, device="cuda") for _ in range(2))
        a.data_ptr()
        try:
            b.data_ptr()
        except torch.cuda.OutOfMemoryError:
            print("refused", torch.cuda.memory_stats()["num_ooms"])
    """, conf=SHORT)
    assert done.stdout.split() == ["refused", "1"] and (tmp_path / "oom.html").exists()


def test_a_pool_that_has_a_smaller_segment_is_not_refused(run, tmp_path):
    done = run("""
        import torch
        kept = torch.ones(52 << 18, device="cuda")
        kept.data_ptr()
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            small = torch.ones(2 << 18, device="cuda")  # of 20 MiB, where there is room
            print("made", torch.cuda.memory_stats()["num_ooms"])
            try:
                torch.ones(40 << 18, device="cuda")
            except torch.cuda.OutOfMemoryError:
                print("refused", torch.cuda.memory_stats()["num_ooms"])
    """, conf=SHORT)
    assert done.stdout.split() == ["made", "0", "refused", "1"]


@pytest.mark.parametrize("knob, page", [("firn_oom_page:oom.html", "oom.html"),
                                        ("firn_trace:job.csv", "job.oom.html")])
def test_the_page_stays_where_it_was_asked_for(run, tmp_path, knob, page):
    (tmp_path / "elsewhere").mkdir()
    run("import os, torch; torch.ones(1, device='cuda'); os.chdir('elsewhere')\n" +
        textwrap.dedent(REFUSED % 1),
        conf=f"{CONF},{knob}")
    assert (tmp_path / page).exists()


MONITORED = """
    import os, time, urllib.error, urllib.request
    import torch
    kept = torch.ones(8 << 20, device="cuda")
    where = os.environ["WHERE"]
    if where.isdigit():
        address = f"http://127.0.0.1:{where}"
        with urllib.request.urlopen(address + "/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            text = answer.read().decode()
        try:
            urllib.request.urlopen(address + "/else")
            raise SystemExit("/else was found")
        except urllib.error.HTTPError as error:
            assert error.code == 404
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with urllib.request.urlopen(address) as answer:
            assert answer.read().decode().endswith("# EOF\\n")
    else:
        while not os.path.exists(where):
            time.sleep(.01)
        text = open(where).read()
    assert text.endswith("# EOF\\n"), text
    print(text)
"""


def value(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(name + "{")]
    return float(line.split()[-1])


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_port_is_answered_while_the_job_runs(run, port):
    done = run(MONITORED, conf=f"{CONF},firn_metrics:{port}", WHERE=port)
    assert value(done.stdout, "firn_allocated_bytes") >= 32 << 20
    assert value(done.stdout, "firn_budget_bytes") == 256 << 20
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_port_in_use_is_said_and_the_job_goes_on(run, port):
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        done = run("import torch; print(torch.ones(2, device='cuda').sum().item())",
                   conf=f"{CONF},firn_metrics:{port}")
    assert done.stdout.strip() == "2.0"
    assert f"port {port}" in done.stderr and "the job runs without metrics" in done.stderr


def test_a_file_is_there_at_once_and_right_at_the_end(run, tmp_path):
    path = tmp_path / "firn.prom"
    run(MONITORED, conf=f"{CONF},firn_metrics:{path}", WHERE=path)
    last = path.read_text()
    assert last.endswith("# EOF\n") and value(last, "firn_peak_allocated_bytes") >= 32 << 20
    assert [each.name for each in tmp_path.iterdir()] == ["firn.prom"]
