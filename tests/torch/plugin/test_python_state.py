"""Firn looks for Python's lines while operators unwind from Python's exceptions, while the
interpreter ends, and in threads that Python has never seen."""

TIGHT = "backend:firn,firn_budget:40MiB,firn_host:256MiB,firn_watch:0,firn_policy:age"
CHECKPOINTS = """
    import torch, firn
    from torch.utils.checkpoint import checkpoint
    xs = [torch.ones(1 << 21, device="cuda") for _ in range(8)]
    {asked}
    def f(x):
        return torch.relu(x * 2).sin().cos() + x
    for round in range(20):
        x = xs[round % 8].detach().requires_grad_()
        checkpoint(f, x, use_reentrant={reentrant}).sum().backward()
        assert x.grad is not None
    {after}
    print("done")
"""
LINES = "firn.call_sites()"


def test_a_checkpoint_that_stops_early(run):
    """The recomputation ends by an exception from within an operator."""
    done = run(CHECKPOINTS.format(asked=LINES, after="", reentrant=False), conf=TIGHT)
    assert done.stdout == "done\n"


def test_a_reentrant_checkpoint(run):
    done = run(CHECKPOINTS.format(asked=LINES, after="", reentrant=True), conf=TIGHT)
    assert done.stdout == "done\n"


def test_a_checkpoint_whose_memory_is_recorded(run):
    done = run(CHECKPOINTS.format(
        asked="torch.cuda.memory._record_memory_history(context='all')",
        after="assert torch.cuda.memory._snapshot()['device_traces'][0]", reentrant=False),
        conf=TIGHT)
    assert done.stdout == "done\n"


def test_a_trace_of_a_checkpoint(run, tmp_path):
    done = run(CHECKPOINTS.format(asked="", after="", reentrant=False),
               conf=TIGHT + ",firn_trace:%s" % (tmp_path / "trace.csv"))
    assert done.stdout == "done\n"


def test_an_operators_own_exception_arrives(run, libraries):
    run("""
        import torch, firn
        library = torch.library.Library("firn_test", "FRAGMENT")
        library.define("fail(Tensor x) -> Tensor")
        def fail(x):
            x + 1
            raise KeyError("what went wrong")
        library.impl("fail", fail, "CUDA")
        xs = [torch.ones(1 << 21, device="cuda", requires_grad=True) for _ in range(8)]
        firn.call_sites()
        for x in xs * 3:
            try:
                torch.ops.firn_test.fail(x)
            except KeyError as error:
                assert error.args == ("what went wrong",)
            else:
                assert False
            with torch.autograd.graph.saved_tensors_hooks(lambda t: 1 / 0, lambda t: t):
                try:
                    torch.sin(x)
                except ZeroDivisionError:
                    pass
                else:
                    assert False
    """, conf=TIGHT, LD_PRELOAD=libraries["software/libcudart.so.13"])


def test_operators_while_the_interpreter_ends(run):
    done = run("""
        import atexit, threading, torch, firn
        xs = [torch.ones(1 << 21, device="cuda", requires_grad=True) for _ in range(8)]
        firn.call_sites()
        def work(rounds=None):
            while rounds is None or rounds:
                for x in xs:
                    x.sin()
                rounds = None if rounds is None else rounds - 1
        class Late:
            def __del__(self):
                work(1)
        late = Late()
        late.itself = late          # lives until modules are taken down
        atexit.register(work, 1)
        # (Not a daemon: such a thread ends PyTorch without Firn, too.)
        threading.Thread(target=work, args=(20,)).start()
        print("done", flush=True)
    """, conf=TIGHT)
    assert done.stdout == "done\n"


def test_threads_without_python(run):
    """Autograd's."""
    run("""
        import torch, firn
        xs = [torch.ones(1 << 21, device="cuda", requires_grad=True) for _ in range(8)]
        firn.call_sites()
        for _ in range(3):
            for x, y in zip(xs, xs[1:]):
                (x * y).sum().backward()
        rows = firn.stats()["stalls"]["call_sites"]
        assert rows
    """, conf=TIGHT)


def test_what_a_signals_handler_raises_arrives(run):
    """Python's code runs while lines are told, and with it the handlers of signals: what they raise
    is the program's (a KeyboardInterrupt, say)."""
    done = run("""
        import signal, torch, firn
        xs = [torch.ones(1 << 20, device="cuda") for _ in range(30)]
        firn.call_sites()
        class Came(Exception):
            pass
        raised = arrived = 0
        def handler(number, frame):
            global raised
            raised += 1
            signal.setitimer(signal.ITIMER_REAL, 0.003 + raised % 7 / 1000)
            raise Came
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        while raised < 400:
            try:
                while raised < 400:
                    for x in xs:
                        x.mul_(1)
            except Came:
                arrived += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert arrived == raised, (arrived, raised)
        print("done")
    """, conf=TIGHT)
    assert done.stdout == "done\n"


def test_a_line_that_waits_for_an_import_is_done_without(run):
    """This thread has the lock of a module that telling a line imports."""
    done = run("""
        import importlib._bootstrap, time, torch, firn
        xs = [torch.ones(1 << 21, device="cuda") for _ in range(8)]
        firn.call_sites()
        lock = importlib._bootstrap._get_module_lock("torch")
        lock.acquire()
        torch.__spec__._initializing = True
        begin = time.monotonic()
        for x in xs[:3]:
            x.mul_(2)
        took = time.monotonic() - begin
        torch.__spec__._initializing = False
        lock.release()
        assert 1 < took < 30, took  # it did wait, and not for ever
        assert all(float(x[0]) == 2 for x in xs[:3])
        for x in xs:
            x.mul_(2)
        print("done")
    """, conf=TIGHT)
    assert done.stdout == "done\n"
