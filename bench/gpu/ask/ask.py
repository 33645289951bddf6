"""Asks the driver one question: ask.py QUESTION --out FILE [--library FILE] [WORD...]. Run once
for each (bench/gpu/question_steps.py): some end the process, or leave a context that is lost."""

import argparse
import pathlib

import cu
import entries
import memory
import sticky
import streams

QUESTIONS = {
    "attributes": memory.attributes, "nodes": memory.nodes, "handle-types": memory.handle_types,
    "granules": memory.granules, "host-node": memory.host_node, "widths": memory.widths,
    "buffer-ids": memory.buffer_ids, "identity": entries.identity,
    "capture-null": streams.capture_null, "ptds": streams.per_thread,
    "shared-frame": streams.shared_frame, "sticky": sticky.after,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--library", default="libcuda.so.1")
    parser.add_argument("words", nargs="*")
    args = parser.parse_intermixed_args()
    answers = cu.Answers(args.out)
    try:
        QUESTIONS[args.question](cu.Gpu(args.library, answers), *args.words)
    except cu.NotHere as why:
        answers.line(not_here=str(why))
    except cu.Unexpected as why:
        answers.line(unexpected=str(why))
    answers.line(done=True)


if __name__ == "__main__":
    main()
