"""What only a driver answers, asked before anything is built (bench/gpu/ask): raw answers, by which
the software GPU can be corrected, and what Firn takes for granted as checks. Each question has a
process of its own: some end it, or lose the context."""

import json
import re
import time

from results import Cut, Failed

EACH_S = 20
GRANULE = 2 << 20
# What Firn writes of its own memory (allocator/preload/memory.cpp), by the numbers of
# CUpointer_attribute: callers read as much.
WIDTHS = {2: 4, 3: 8, 6: 4, 7: 8, 8: 4, 9: 4, 10: 4, 11: 8, 12: 8, 13: 4, 14: 8, 15: 4, 16: 4,
          17: 8, 18: 8, 19: 8, 20: 8, 21: 4}


def library(suite):
    if not suite.software:
        return "libcuda.so.1"
    suite.needs_build()
    return (suite.build / "backing/gpu/software/libcuda.so.1").resolve()


def ask(suite, step, question, *words, limit_s=EACH_S):
    """{"answers": {name: value}} and, where there is something to it, "not_here", "unexpected",
    "ended" (how the process did) and "about" (what it was asking then)."""
    out = suite.work / ("-".join(["ask", question, *map(str, words)])[:80] + ".json")
    out.unlink(missing_ok=True)
    found, begin = {"answers": {}}, time.monotonic()
    command = [suite.python, suite.root / "bench/gpu/ask/ask.py", question, *words, "--out", out,
               "--library", library(suite)]
    try:
        done = step.run(command, suite.environment(), limit_s, ok=None)
        if done.rc:
            found["ended"] = f"by signal {-done.rc}" if done.rc < 0 else \
                f"with status {done.rc}: {(done.text.strip().splitlines() or ['?'])[-1][:200]}"
    except Cut as why:
        if step.time_left() < 2:
            raise
        found["ended"] = str(why).rsplit(": ", 1)[-1]
    found["seconds"] = round(time.monotonic() - begin, 2)
    about, finished = "its begin", False
    for line in out.read_text().splitlines() if out.exists() else ():
        told = json.loads(line)
        about = told.get("about", about)
        finished = finished or "done" in told
        if "name" in told:
            found["answers"][told["name"]] = told["value"]
        found.update({key: told[key] for key in ("not_here", "unexpected") if key in told})
    if "ended" in found:
        found["about"] = "its end, after the last answer" if finished else about
    return found


def keep(step, name, found):
    """The answers as figures; whether there are some."""
    step.figure(name, {**found["answers"], **{key: found[key] for key in (
        "ended", "about", "unexpected", "seconds") if key in found}})
    if "not_here" in found:
        step.left_out(name, found["not_here"])
        return False
    if "ended" in found or "unexpected" in found:
        step.check(f"{name}: was answered", False, found.get("unexpected") or
                   f"the process ended {found['ended']}, about {found['about']}")
        return False
    return True


def asked(suite, step):
    for name, check in CHECKS.items():
        found = ask(suite, step, name)
        if name == "host-node" and "ended" in found:  # some drivers end there: that is an answer
            step.figure(name, {**found["answers"], "ended": found["ended"],
                               "about": found["about"]})
            step.left_out(name, f"the process ended {found['ended']}, about {found['about']}")
            if "bytes" in found["answers"]:
                check(step, found["answers"])
        elif keep(step, name, found):
            check(step, found["answers"])
    other_nodes(suite, step)


def other_nodes(suite, step):
    """Host memory of the nodes that Firn would not take, where there are some."""
    told = step.row["figures"].get("nodes", {})
    for node in list(told.get("nodes", {}))[:8]:
        if int(node) != max(told.get("node_by_attribute_134") or 0, 0):
            found = ask(suite, step, "host-node", node)
            step.figure(f"host-node {node}", {
                **{key: found["answers"][key] for key in ("cuMemCreate", "bytes")
                   if key in found["answers"]},
                **{key: found[key] for key in ("ended", "about") if key in found}})


def of_attributes(step, answers):
    named = answers["named"]
    for number, wanted in ((102, 1), (41, 1)):
        name = next(each for each in named if each.startswith(f"{number} "))
        step.check(f"attribute {name}", named[name] == wanted, named[name])


def of_handles(step, answers):
    step.check("frames can be had, shareable or not",
               any(answers[name].startswith("0 ") for name in ("none", "posix_fd")), answers)


def of_granules(step, answers):
    sizes = {name: size for name, size in answers.items() if name.endswith("least") and
             name.startswith("device") and isinstance(size, int)}
    step.check("granules of 2 MiB", sizes and set(sizes.values()) == {GRANULE}, sizes)


def of_host_node(step, answers):
    if not answers["cuMemCreate"]["answer"].startswith("0 "):
        step.left_out("host-node", f"cuMemCreate: {answers['cuMemCreate']['answer']}")
        return
    step.check("host memory at a device address: bytes through copies", answers["bytes"], {
        name: told for name, told in answers.items() if name[0].isdigit()})


def of_widths(step, answers):
    """Where the driver answers at all."""
    other = {name: told["bytes"] for name, told in answers["cuMemAlloc"].items()
             if told["answer"].startswith("0 ") and
             told["bytes"] != WIDTHS.get(int(name.split()[0]), told["bytes"])}
    step.figure("not as wide as Firn's", other)
    step.check("answers about pointers are as wide as Firn's", not other, other)


def of_ids(step, answers):
    for name, rounds in answers.items():
        step.check(f"{name.split(':')[0]}: an address that comes again has another id",
                   len({number for _, number in rounds}) == len(rounds), rounds)


def of_entries(step, answers):
    others = answers["another address than dlsym's"]
    step.check("cuGetProcAddress answers dlsym's addresses", not others, others[:5])
    past = answers["an entry that Firn lets past"]
    step.check("cuGetProcAddress answers no entry beside those that Firn handles", not past,
               past[:5])


def of_captures(step, answers):
    step.check("a captured stream says so", all(
        told["cuStreamIsCapturing itself"]["status"] == 1 for told in answers.values()))


def of_per_thread(step, answers):
    for name, wanted in (("per thread busy, legacy noted", "600"),
                         ("legacy busy, per thread noted", "600"),
                         ("non-blocking busy, legacy noted", "0"),
                         ("per thread busy, per thread noted in another thread", "0")):
        step.check(f"{name}: {wanted}", answers[name]["event"].split()[0] == wanted, answers[name])


def of_frames(step, answers):
    step.check("kernels on parts of one frame keep to their own", set(answers.values()) == {0},
               answers)


# In this order; what is asked, and what Firn takes for granted of the answers.
CHECKS = {"attributes": of_attributes, "nodes": lambda step, answers: None,
          "handle-types": of_handles, "granules": of_granules, "identity": of_entries,
          "widths": of_widths, "buffer-ids": of_ids, "capture-null": of_captures,
          "ptds": of_per_thread, "shared-frame": of_frames, "host-node": of_host_node}

KINDS = ("stores", "asserts", "misaligned", "traps", "jumps")
ENDS_MOST = 4  # entries during which a process may end or hang, each time left out afterwards


def after_failure(suite, step, kind):
    """The answers of all entries, gathered over processes where one ends within an entry."""
    answers, left_out, ends = {}, [], []
    for _ in range(ENDS_MOST):
        found = ask(suite, step, "sticky", kind, *([",".join(left_out)] if left_out else []))
        answers = {**found["answers"], **answers}
        if "ended" not in found:
            break
        ends.append([found["about"], found["ended"]])
        if not re.match(r"cu[A-Z]\w+", found["about"]) or found["about"] in left_out:
            break
        answers[found["about"]] = {"answer": f"the process ended {found['ended']}"}
        left_out.append(found["about"])
    return found, answers, ends


def lost(suite, step):
    """Which entries answer a kernel's error, and which go on, once a context is lost."""
    found, answers, _ = after_failure(suite, step, "none")
    wrong = {name: told for name, told in answers.items() if not told["answer"].startswith("0 ")}
    step.figure("without a failure", answers)
    if not step.check("without a failure every entry succeeds", answers and not wrong, wrong):
        if not answers:
            raise Failed(str(found))
    for kind in KINDS:
        found, answers, ends = after_failure(suite, step, kind)
        if "not_here" in found:
            step.left_out(kind, found["not_here"])
            continue
        groups = {}
        for name, told in answers.items():
            groups.setdefault(told["answer"], []).append(name)
        step.figure(kind, {
            "by answer": groups, "us": {name: told["us"] for name, told in answers.items()
                                        if told.get("us", 0) > 1000},
            "processes that ended": ends, "seconds": found["seconds"],
            **({"unexpected": found["unexpected"]} if "unexpected" in found else {})})
        step.check(f"{kind}: the context tells of it", not answers.get(
            "cuCtxSynchronize", {"answer": "0 "})["answer"].startswith("0 "), groups)
    if all(name in [each["name"] for each in step.row.get("left_out", [])] for name in KINDS):
        step.row["why"] = "no kernel failed: only the calls were tried"


STEPS = (
    ("asked", "what only a driver answers: memory, entries, streams", 90, asked),
    ("asked-lost", "what each entry answers once a kernel has failed", 90, lost),
)
