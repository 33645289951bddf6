"""Snapshots and memory history, and torch's own tools that read them."""

import pickle
import tempfile
import threading

import torch
from _calls import MIB, alone, empty, free_while_used, settle

memory = torch.cuda.memory


def trace(*actions):
    """The device's history: those actions only, all when none is named."""
    entries = memory._snapshot()["device_traces"][0]
    return [entry for entry in entries if not actions or entry["action"] in actions]


def names(entry):
    return [frame["name"] for frame in entry.get("frames", [])]


def call_keys():
    memory._record_memory_history()
    x = empty(3 * MIB)
    snapshot = memory._snapshot()
    memory._record_memory_history(enabled=None)
    segment = snapshot["segments"][0]
    del x
    return [sorted(snapshot), sorted(segment), sorted(segment["blocks"][0]),
            sorted(snapshot["allocator_settings"]), sorted(snapshot["device_traces"][0][0])]


def call_actions():
    memory._record_memory_history()
    x = empty(30 * MIB)
    y = empty(100)
    del x, y
    torch.cuda.empty_cache()
    memory._snapshot()
    found = [[entry["action"], entry["size"] if entry["action"] in ("alloc", "free_completed")
              else None] for entry in trace()]
    memory._record_memory_history(enabled=None)
    large = [action for action, _ in found if action.startswith("segment")]
    return [[each for each in found if not each[0].startswith("segment")], sorted(large)]


def call_large_segments():
    memory._record_memory_history()
    x = empty(30 * MIB)
    address = x.data_ptr()
    del x
    torch.cuda.empty_cache()
    found = [[entry["action"], entry["addr"] == address, entry["size"], bool(entry["frames"])]
             for entry in trace("segment_alloc", "segment_free")]
    memory._record_memory_history(enabled=None)
    return found


def call_last_is_segment_free():
    memory._record_memory_history()
    x = empty(311 * 411 * 4)
    del x
    torch.cuda.empty_cache()
    last = trace()[-1]["action"]
    memory._record_memory_history(enabled=None)
    return last


def call_a_snapshot_is_noted():
    memory._record_memory_history()
    x = empty(MIB * 4)
    memory._snapshot()
    found = [entry["action"] for entry in trace()]
    memory._record_memory_history(enabled=None)
    del x
    return found


def allocate_in_a_function():
    return empty(5 * MIB)


def call_python_frames():
    found = {}
    for context in (None, "state", "alloc", "all"):
        memory._record_memory_history(context=context, clear_history=True)
        x = allocate_in_a_function()
        blocks = [block for segment in memory._snapshot()["segments"]
                  for block in segment["blocks"] if block["state"] == "active_allocated"]
        found["%s blocks" % context] = ["allocate_in_a_function" in names(b) for b in blocks]
        del x
        found["%s trace" % context] = [[entry["action"], "allocate_in_a_function" in names(entry)]
                                       for entry in trace("alloc", "free_requested",
                                                          "free_completed")]
        memory._record_memory_history(enabled=None)
        settle()
    return found


def call_state_alone_keeps_no_trace():
    memory._record_memory_history(enabled="state")
    x = allocate_in_a_function()
    snapshot = memory._snapshot()
    memory._record_memory_history(enabled=None)
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]
              if block["state"] == "active_allocated"]
    del x
    return [["allocate_in_a_function" in names(block) for block in blocks],
            [entry["action"] for entry in snapshot["device_traces"][0]
             if entry["action"] == "alloc"]]


def call_cpp_frames():
    memory._record_memory_history(stacks="all")
    x = allocate_in_a_function()
    found = [any("empty" in name for name in names(entry)) for entry in trace("alloc")]
    memory._record_memory_history(enabled=None)
    del x
    return found


def call_entries_at_most():
    memory._record_memory_history(max_entries=4)
    for _ in range(5):
        x = empty(100)
        del x
    found = [len(trace()), len(trace())]
    memory._record_memory_history(enabled=None)
    return found


def call_turned_off_history_stays_readable():
    memory._record_memory_history()
    x = empty(3 * MIB)
    memory._record_memory_history(enabled=None)
    y = empty(3 * MIB)
    found = [entry["action"] for entry in trace("alloc", "free_requested")]
    memory._record_memory_history(clear_history=True)
    after = [entry["action"] for entry in trace("alloc", "free_requested")]
    memory._record_memory_history(enabled=None)
    del x, y
    return [found, after]


def call_skipped_actions():
    memory._record_memory_history(skip_actions=["free_requested", "snapshot", "segment_alloc"])
    x = empty(3 * MIB)
    del x
    memory._snapshot()
    found = [entry["action"] for entry in trace()]
    memory._record_memory_history(enabled=None)
    return found


def call_legacy_history():
    memory._record_memory_history(True, trace_alloc_max_entries=100,
                                  trace_alloc_record_context=True)
    x = allocate_in_a_function()
    found = [[entry["action"], "allocate_in_a_function" in names(entry)]
             for entry in trace("alloc")]
    memory._record_memory_history(False)
    del x
    return found


def call_metadata_of_the_user():
    memory._record_memory_history()
    memory._set_memory_metadata("phase one")
    said = memory._get_memory_metadata()
    x = empty(100)
    memory._set_memory_metadata("")
    y = empty(100)
    found = [entry.get("user_metadata") for entry in trace("alloc")]
    memory._record_memory_history(enabled=None)
    del x, y
    return [said, memory._get_memory_metadata(), found]


def call_metadata_of_other_threads():
    memory._record_memory_history()
    memory._set_memory_metadata("this thread's")

    def other():
        said.append(memory._get_memory_metadata())
        memory._set_memory_metadata("the other's")
        kept.append(empty(200))
    said, kept = [], []
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    kept.append(empty(100))
    found = [[entry["size"], entry.get("user_metadata")] for entry in trace("alloc")]
    said.append(memory._get_memory_metadata())
    memory._set_memory_metadata("")
    memory._record_memory_history(enabled=None)
    return [said, found]


def call_annotated_blocks():
    """Of torch 2.14 and later."""
    if not hasattr(memory, "_annotate_tensor"):
        return []
    x, y = empty(100), empty(3 * MIB)
    memory._annotate_tensor(x, "before history")
    memory._record_memory_history()
    memory._set_memory_metadata("the thread's")
    memory._annotate_tensor(x, "small")
    memory._annotate_tensor(y[1000:], "a part of large")
    found = [[entry["size"], entry["addr"] in (x.data_ptr(), y.data_ptr()), entry["stream"],
              entry["user_metadata"], "call_annotated_blocks" in names(entry), entry["pool_id"]]
             for entry in trace("annotate")]
    said = [memory._memory_metadata_supported(), memory._get_memory_metadata()]
    memory._set_memory_metadata("")
    memory._record_memory_history(enabled=None)
    return [said, found]


def call_compile_contexts():
    memory._record_memory_history(compile_context=True)
    x = empty(100)
    found = [entry.get("compile_context") for entry in trace("alloc")]
    memory._record_memory_history(enabled=None)
    del x
    return found


def call_annotations():
    memory._record_memory_history(global_record_annotations=True)
    with torch.autograd.profiler.record_function("a phase"):
        x = empty(100)
    found = [[each["name"], each["stage"], each["device"], "time_us" in each]
             for each in memory._snapshot()["external_annotations"]]
    memory._record_memory_history(enabled=None)
    del x
    return found


def call_waiting_frees():
    memory._record_memory_history()
    free_while_used(4 * MIB)
    snapshot = memory._snapshot()
    states = [block["state"] for segment in snapshot["segments"] for block in segment["blocks"]
              if block["size"] == 4 * MIB]
    waiting = [entry["action"] for entry in trace("alloc", "free_requested", "free_completed")]
    torch.cuda.synchronize()
    y = empty(100)
    over = [entry["action"] for entry in trace("free_requested", "free_completed")]
    memory._record_memory_history(enabled=None)
    del y
    return [states, waiting, over]


def call_out_of_memory_is_noted():
    memory._record_memory_history()
    try:
        empty(1 << 40)
    except torch.cuda.OutOfMemoryError:
        pass
    found = [[entry["action"], entry["size"], entry["device_free"] > 0, bool(entry["frames"])]
             for entry in trace("oom")]
    memory._record_memory_history(enabled=None)
    return found


def call_segments_add_up():
    kept = [empty(size) for size in (100, 700_000, 2 * MIB, 30 * MIB)]
    snapshot = memory._snapshot()
    found = []
    for segment in snapshot["segments"]:
        addresses = [block["address"] for block in segment["blocks"]]
        sizes = [block["size"] for block in segment["blocks"]]
        found.append([sum(sizes) == segment["total_size"], addresses == sorted(addresses),
                      addresses[0] == segment["address"]])
    total = sum(segment["total_size"] for segment in snapshot["segments"])
    allocated = sum(segment["allocated_size"] for segment in snapshot["segments"])
    requested = sum(segment["requested_size"] for segment in snapshot["segments"])
    del kept
    return [all(all(each) for each in found), total >= torch.cuda.memory_allocated(), allocated,
            requested, total == torch.cuda.memory_reserved()]


def call_cached_blocks_are_listed():
    x = empty(30 * MIB)
    address = x.data_ptr()
    del x
    return [[block["state"], block["size"], block["requested_size"]]
            for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]
            if block["address"] == address]


def call_saved_snapshots():
    memory._record_memory_history()
    x = allocate_in_a_function()
    with tempfile.NamedTemporaryFile() as file:
        memory._dump_snapshot(file.name)
        snapshot = pickle.load(file)
    memory._record_memory_history(enabled=None)
    from torch.cuda import _memory_viz as viz
    text = viz.segsum(snapshot), viz.trace(snapshot)
    pages = viz.trace_plot(snapshot), viz.segment_plot(snapshot)
    del x
    return [["allocate_in_a_function" in text[0], "alloc" in text[1]], all(pages)]


def call_history_is_enabled():
    before = torch._C._cuda_isHistoryEnabled()
    memory._record_memory_history()
    during = torch._C._cuda_isHistoryEnabled()
    memory._record_memory_history(enabled=None)
    return [before, during, torch._C._cuda_isHistoryEnabled()]


def call_many_threads():
    import threading
    memory._record_memory_history(max_entries=1000)
    errors = []

    def work():
        try:
            for _ in range(100):
                x = empty(5000)
                del x
                memory._snapshot()
        except Exception as error:
            errors.append(str(error))
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    memory._record_memory_history(enabled=None)
    return errors


@alone()
def call_before_the_first_allocation():
    memory._record_memory_history()
    snapshot = memory._snapshot()
    x = empty(3 * MIB)
    found = [entry["action"] for entry in trace("alloc")]
    del x
    return [snapshot["segments"], found]
