"""The Python package: hints, no_spill(), tables and reports, waits by operator and by line."""

import json
import subprocess

import pytest

from conftest import PYTHON, ROOT, clean_environment

# Blocks of 8 MiB, of which 5 fit; what is used in turn leaves and comes back.
TIGHT = "backend:firn,firn_budget:40MiB,firn_host:256MiB,firn_watch:0,firn_policy:age"
TURNS = """
    import json, time, torch, firn
    from firn import _addresses, _libraries
    def state(tensor):
        address = _addresses.storage_address(tensor.untyped_storage())
        return _libraries.read_text(firn._plugin().firn_torch_state, address)
    def at_leisure(work):  # (Firn asks by itself where two waits in turn are a third of the time)
        begin = time.monotonic()
        result = work()
        time.sleep(5 * (time.monotonic() - begin))
        return result
    def make(count):
        return [at_leisure(lambda: torch.ones(1 << 21, device="cuda")) for _ in range(count)]
    def leave(*tensors):  # (what is on its way back leaves once it has arrived)
        end = time.monotonic() + 10
        while (found := {state(each) for each in tensors}) != {"hosted"}:
            assert time.monotonic() < end, found
            firn._plugin().firn_torch_spill_all()
"""


def turns(code):
    return TURNS + code


def test_waits_by_operator(run):
    done = run(turns("""
    tensors = make(8)
    for _ in range(3):
        for tensor in tensors:
            at_leisure(lambda: tensor.add_(1))
    print(json.dumps(firn.stats()))
    """), conf=TIGHT)
    document = json.loads(done.stdout)
    (device,) = document["devices"]
    operators = document["stalls"]["operators"]
    assert device["stalls"] > 0
    assert sum(row["waits"] for row in operators) == device["stalls"]
    assert sum(row["seconds"] for row in operators) == pytest.approx(device["stall_s"])
    assert "aten::add_" in [row["name"] for row in operators]
    assert [row["seconds"] for row in operators] \
        == sorted((row["seconds"] for row in operators), reverse=True)
    assert document["stalls"]["call_sites"] == []  # nobody asked


def test_waits_by_line(run, tmp_path):
    """The innermost line that is not torch's; in autograd's threads that of the forward operator."""
    script = tmp_path / "program.py"
    script.write_text("""
def touch(tensors):
    for tensor in tensors:
        torch.nn.functional.relu(tensor, inplace=True)

def back(tensors):
    sum((tensor * tensor).mean() for tensor in tensors).backward()
""")
    done = run(turns("""
    code = compile(open("program.py").read(), "program.py", "exec")
    program = {"torch": torch}
    exec(code, program)
    tensors = make(8)
    firn.call_sites()
    program["touch"](tensors)
    firn.call_sites(False)
    before = firn.stats()["stalls"]["call_sites"]
    for _ in range(20):  # (On a slow machine Firn asks by itself for a while: most time is waits.)
        seen = firn.stats()["stalls"]["call_sites"]
        program["touch"](tensors)
        if firn.stats()["stalls"]["call_sites"] == seen:
            break
    else:
        raise AssertionError("lines are counted that nobody asked for")
    firn.call_sites()
    program["back"]([tensor.requires_grad_() for tensor in tensors])
    print(json.dumps([before, firn.stats()["stalls"]["call_sites"]]))
    """), conf=TIGHT)
    before, after = json.loads(done.stdout)
    assert [row["name"] for row in before] == ["program.py:4 in touch"]
    assert before[0]["waits"] >= 4 and before[0]["seconds"] > 0
    names = {row["name"] for row in after}
    assert "program.py:7 in <genexpr>" in names
    assert any(name.startswith("backward of aten::") and "at program.py:7" in name
               for name in names), names


def test_waits_by_line_do_not_wait_for_each_other(run):
    """Threads that wait for memory take Python's lock only when they hold no block."""
    done = run(turns("""
    import threading
    firn.call_sites()
    tensors = make(12)
    def work(mine):
        for _ in range(20):
            for tensor in mine:
                tensor.mul_(1.5).sub_(0.5)
            torch.UntypedStorage(8 << 20, device="cuda")  # allocates with Python's lock held
    threads = [threading.Thread(target=work, args=(tensors[i::3],)) for i in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert all(bool((tensor == 1).all()) for tensor in tensors)
    rows = firn.stats()["stalls"]["call_sites"]
    assert any(" in work" in row["name"] for row in rows), rows
    print("done")
    """), conf=TIGHT)
    assert done.stdout.strip() == "done"


def test_pin_cold_prefetch(run):
    run(turns("""
    first, second = make(2)
    firn.cold(first)
    leave(first)
    assert state(second) in ("resident", "spilling", "hosted")
    firn.prefetch(first)
    first.add_(1)
    firn.pin(first), firn.pin(first)
    torch.cuda.synchronize()
    firn._plugin().firn_torch_spill_all()
    leave(second)
    assert state(first) == "resident"
    pinned = firn.stats()["devices"][0]["pinned"]
    assert {"reason": "firn.pin()", "bytes": 8 << 20} in pinned, pinned
    firn.unpin(first)
    firn._plugin().firn_torch_spill_all()
    assert state(first) == "resident"
    firn.unpin(first)
    leave(first)
    try:
        firn.unpin(first)
    except RuntimeError as error:
        assert "not pinned" in str(error)
    else:
        raise SystemExit("unpin() without pin()")
    host = torch.ones(3)
    firn.pin(host), firn.cold(host), firn.prefetch(host), firn.unpin(host)  # no effect
    """), conf=TIGHT)


def test_prefetch_and_cold_take_lists_and_modules(run):
    """One call hints at all of them: parameters, buffers, what is nested; what is on the CPU, or
    None, is skipped."""
    run(turns("""
    class Model(torch.nn.Module):
        def __init__(self, weight, buffer):
            super().__init__()
            self.inner = torch.nn.ParameterList([weight])
            self.tied = self.inner[0]
            self.register_buffer("kept", buffer)
    weight, buffer, first, second, alone = make(5)
    model = Model(torch.nn.Parameter(weight), buffer)
    everything = [weight, buffer, first, second, alone]
    def wait_for(*there):
        wanted = ["resident" if any(each is one for one in there) else "hosted"
                  for each in everything]
        end = time.monotonic() + 10
        while [state(each) for each in everything] != wanted:
            assert time.monotonic() < end, ([state(each) for each in everything], wanted)
    torch.cuda.synchronize()
    for hinted, others in ((lambda: model, [first, second]),
                           (lambda: [[first], {"a": (second, torch.ones(3))}], [weight, buffer]),
                           (lambda: (model, None, iter([first])), [second])):
        firn.cold(hinted())
        wait_for(*others, alone)
        firn.prefetch(hinted())
        wait_for(*everything)
    for wrong in (3, "weight", [object()]):
        try:
            firn.prefetch(wrong)
        except TypeError as error:
            assert "takes a tensor" in str(error), error
        else:
            raise SystemExit("it was taken")
    firn.prefetch([]), firn.cold(None), firn.cold([torch.empty(0, device="cuda")])
    """), conf=TIGHT)


def test_hints_act_at_their_place(run):
    """Nothing leaves for a prefetch while work is queued before it; a hint within a capture is
    ignored, and the graph is whole."""
    run(turns("""
    first, *others = make(6)
    for each in others:
        each.add_(1)
    torch.cuda.synchronize()
    assert state(first) == "hosted"
    for hinted in (False, True):
        torch.cuda._sleep(200_000_000)
        if hinted:
            firn.prefetch(first)
            firn.cold(others[0])
        looks = 0
        while True:
            states = [state(each) for each in [first, *others]]
            if torch.cuda.current_stream().query():
                break
            assert states == ["hosted"] + ["resident"] * 5, states
            looks += 1
        assert looks > 10
    end = time.monotonic() + 10
    while state(first) != "resident" or state(others[0]) != "hosted":
        assert time.monotonic() < end, (state(first), state(others[0]))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        firn.prefetch(others)
        firn.cold(first)
        first.add_(1)
    for _ in range(2):
        graph.replay()
    assert bool((first == 3).all()) and bool((others[0] == 2).all())
    """), conf=TIGHT)


def test_hints_of_sparse_tensors(run):
    """Their parts are what has storages."""
    run(turns("""
    values = torch.ones(1 << 20, device="cuda")
    index = torch.arange(1 << 20, device="cuda")
    sparse = torch.sparse_coo_tensor(index[None], values, (1 << 20,), is_coalesced=True)
    rows = torch.arange((1 << 20) + 1, device="cuda")
    csr = torch.sparse_csr_tensor(rows, torch.zeros_like(index), values.clone(), (1 << 20, 1))
    for tensor, parts in ((sparse, [sparse._indices(), sparse._values()]),
                          (csr, [csr.crow_indices(), csr.col_indices(), csr.values()])):
        firn.pin(tensor)
        firn._plugin().firn_torch_spill_all()
        assert {state(part) for part in parts} == {"resident"}
        firn.unpin(tensor), firn.cold(tensor), firn.prefetch(tensor)
        leave(*parts)
    """), conf=TIGHT)


def test_no_spill(run):
    """Nothing leaves inside, by itself or asked for; what does not fit is out of memory, and says
    why; afterwards all is as before."""
    run(turns("""
    away = make(2)
    firn._plugin().firn_torch_spill_all()
    tensors = make(4)
    def stay(tensors):  # (a copy may be made ahead meanwhile, and "spilling" is that, too)
        end = time.monotonic() + 10
        while (found := {state(each) for each in tensors}) != {"resident"}:
            assert found <= {"resident", "spilling"} and time.monotonic() < end, found
    for tensor in tensors:
        tensor.add_(1)
    with firn.no_spill():
        with firn.no_spill():  # nested
            pass
        spilled = firn.stats()["devices"][0]["evictions"]
        firn._plugin().firn_torch_spill_all()
        firn.cold(tensors[0])
        away[0].add_(1)  # comes back: there is room for one
        try:
            make(1)
        except torch.OutOfMemoryError as error:
            assert "firn.no_spill()" in str(error), error
        else:
            raise SystemExit("it fits")
        stay(tensors + away[:1])
        away[1].add_(1)  # no room: used in host memory
        stay(tensors + away[:1])
        assert firn.stats()["devices"][0]["evictions"] == spilled
        assert firn.stats()["devices"][0]["zero_copy_bytes"] >= 8 << 20
    more = make(4)
    assert "hosted" in {state(each) for each in tensors + away}
    for tensor in tensors + away:
        assert bool((tensor == 2).all())
    """), conf=TIGHT)


def test_no_spill_before_cuda_starts_and_after_an_error(run):
    run(turns("""
    guard = firn.no_spill()
    try:
        with guard:
            try:
                make(8)
            except torch.OutOfMemoryError as error:
                assert "firn.no_spill()" in str(error)
            else:
                raise SystemExit("it fits")
            raise KeyError
    except KeyError:
        pass
    make(8)
    with guard:  # again
        pass
    keep = make(8)
    """), conf=TIGHT)


def test_tables_and_report(run, tmp_path):
    done = run(turns("""
    firn.call_sites()
    tensors = make(8)
    firn.pin(tensors[0])
    for tensor in tensors + tensors:
        tensor.add_(1)
    after = firn.stats()
    before = None
    while before != after:  # what is on its way to host memory is still being counted
        before, table, after = after, firn.memory_summary(), firn.stats()
    print(table)
    print("=====")
    print(firn.memory_summary(0, abbreviated=True))
    print("=====")
    print(firn.memory_summary(3))
    print("=====")
    assert firn.report("report.txt") + "\\n" == open("report.txt").read()
    print(firn.report())
    print("=====")
    print(json.dumps(after))
    """), conf=TIGHT)
    table, short, none, report, document = done.stdout.split("=====\n")
    device = json.loads(document)["devices"][0]
    assert none.strip() == "Firn has not used device 3"
    for lines in (table.splitlines(), short.splitlines()):
        assert {len(line) for line in lines} == {75}
        assert lines[0] == lines[-1] == "|" + "=" * 73 + "|"
    rows = {line[1:47].strip(): [part.strip() for part in line[49:].strip("|").split("|")]
            for line in table.splitlines()}
    assert rows["Budget"][0] == "40.00 MiB" and rows["Waits by operator (all devices)"]
    assert rows["Allocated"] == ["64.00 MiB", "64.00 MiB"]
    assert rows["Spilled: copied out"][0] == "%.2f MiB" % (device["spilled_bytes"] / 2**20)
    assert rows["firn.pin()"] == ["8.00 MiB", ""]
    hits, faults = (int(rows[name][0].replace(",", ""))
                    for name in ("Hits: the block was there", "Faults: the block was away"))
    assert faults == device["faults"] > 0 and hits + faults == device["touches"]
    assert any(name.startswith("<string>:") for name in rows), rows
    assert "Waits by" not in short and "firn.pin()" not in short and "Budget" in short
    assert "8.00 MiB  firn.pin()" in report and "aten::add_" in report
    assert "No spill files: host memory is the only tier" in report
    assert "Back: " in report and "In " not in report[:3]


def test_without_firn(run):
    run("""
        import torch, firn
        assert firn.stats() == {} and not firn.enabled()
        assert firn.memory_summary() == firn.report() == "Firn is not in use"
        firn.call_sites()
        x = torch.ones(1000, device="cuda")
        with firn.no_spill():
            firn.pin(x), firn.cold(x), firn.prefetch(x), firn.unpin(x)
    """, conf=None)


def test_types(tmp_path):
    """The package is typed: mypy, strictly, of it and of a program that uses it."""
    if subprocess.run([PYTHON, "-c", "import mypy"], capture_output=True).returncode != 0:
        pytest.skip("no mypy (bench/requirements.txt)")
    program = tmp_path / "program.py"
    program.write_text("""
import firn
summary: str = firn.memory_summary(device=0, abbreviated=True) + firn.report("file")
with firn.no_spill():
    on: bool = firn.enabled()
devices: list[dict[str, int]] = firn.stats()["devices"]
firn.pin(3)  # type: ignore[arg-type]
import torch
model = torch.nn.Linear(2, 2)
firn.prefetch(model)
firn.prefetch(model.parameters())
firn.prefetch({"a": [model.weight, (model, model.weight.grad)]})
firn.cold(model.weight)
firn.cold(model.state_dict())
firn.prefetch(3)  # type: ignore[arg-type]
optimizer = torch.optim.SGD(model.parameters())
relay = firn.relay(model, optimizer, micro_batches=2)
loss: torch.Tensor = relay.step(lambda part: model(part).sum(), [torch.ones(1, 2)])
same: torch.nn.Module = firn.relay(model, optimizer, 2, split=True, keep=1)
at_host: str = firn.relay(
    model, optimizer, 2, where="host", accumulate=torch.float32,
    host_optimizer=lambda groups: torch.optim.SGD(groups)).where
firn.relay(model, optimizer, 2, where="gpu")  # type: ignore[call-overload]
""")
    done = subprocess.run(
        [PYTHON, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"),
         "--python-version", "3.10", str(program), str(ROOT / "pytorch_plugin/firn")],
        env={**clean_environment(), "MYPYPATH": str(ROOT / "pytorch_plugin")}, cwd=tmp_path,
        capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
