"""Makes the results of every operator on Firn's list again, and compares their bytes: over types,
layouts, shapes and keywords (operator_calls.py), and over the samples of PyTorch's own list of
operators (op_db). A program of its own, for the software GPU and for real ones:

    PYTORCH_CUDA_ALLOC_CONF=backend:firn python operators.py [--out FILE] [--samples N] [NAME...]

writes JSON: {"operators": {name: {"types": {type: calls made again}, "layouts": [...], "out": 0 or
1, "wrong": [...]}}, "without_calls": [...], "absent": [...], "op_db": {name: made again},
"op_db_wrong": [...], "device": ...}. The status is 0 where nothing is wrong.
"""

import argparse
import json
import sys
import types
import unittest
import warnings

import firn_recipes
import operator_calls
import torch

# What torch raises where an operator has no kernel for a type, or refuses a call.
REFUSED = (RuntimeError, NotImplementedError, IndexError, ValueError, TypeError)


def of_name(name):
    base, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def short(dtype):
    return str(dtype).removeprefix("torch.")


def check_operator(name):
    found = {"types": {}, "layouts": set(), "wrong": []}
    operator = of_name(name)
    for dtype in operator_calls.DTYPES:
        for layout, arguments, keywords in operator_calls.calls_of(name, dtype,
                                                                   few=bool(found["types"])):
            try:
                result = operator(*arguments, **keywords)
            except REFUSED:
                continue
            try:
                made = firn_recipes.check_again(result, (arguments, keywords), name)
            except AssertionError as error:
                found["wrong"].append(f"{short(dtype)}, {layout}, {keywords}: {error}"[:300])
                continue
            if made or layout == "empty":
                found["types"][short(dtype)] = found["types"].get(short(dtype), 0) + made
                found["layouts"].add(layout)
    found["layouts"] = sorted(found["layouts"])
    found["out"] = firn_recipes.listed()[name][1]
    return found


def op_db():
    try:
        import expecttest  # noqa: F401  op_db's module imports it and does not use it here
    except ImportError:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db as listed
    return listed


def check_samples(samples):
    """Whatever of op_db's samples ends in an operator on the list: how often, by operator."""
    made, wrong = {}, []
    for info in op_db():
        if info.name.startswith("jiterator") or "lstsq" in info.name:
            continue
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64):
            if not info.supports_dtype(dtype, "cpu"):
                continue
            for number, sample in enumerate(info.sample_inputs("cpu", dtype)):
                if number == samples:
                    break
                check_sample(info, dtype, moved(sample), made, wrong)
    return made, wrong


def moved(sample):
    return sample.transform(lambda part: part.detach().to("cuda") if isinstance(
        part, torch.Tensor) and part.layout == torch.strided else part)


def check_sample(info, dtype, sample, made, wrong):
    try:
        result = info(sample.input, *sample.args, **sample.kwargs)
    except Exception:  # what it says to samples of another device is not what is tested
        return
    given = (sample.input, sample.args, sample.kwargs)
    for each in firn_recipes.tensors_in(result):
        try:
            name = firn_recipes.recipe(each) if each.layout == torch.strided else ""
            count = firn_recipes.check_again(each, given)
        except AssertionError as error:
            wrong.append(f"{info.name}, {short(dtype)}: {error}"[:300])
            continue
        if count:
            made[name] = made.get(name, 0) + count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out")
    parser.add_argument("--samples", type=int, default=4, help="of each entry of op_db; 0: none")
    parser.add_argument("names", nargs="*", help="of operators; all by default")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert firn_recipes.keep(), "Firn is not in front of the driver"
    listed = firn_recipes.listed()
    kept = [name for name, about in listed.items() if about[0] in ("always", "products")]
    names = options.names or kept
    found = {"without_calls": sorted(set(kept) - set(operator_calls.CALLS)),
             "not_listed": sorted(set(operator_calls.CALLS) - set(kept)),
             "absent": sorted(set(listed) - set(kept)),
             "operators": {name: check_operator(name) for name in names
                           if name in operator_calls.CALLS},
             "device": torch.cuda.get_device_name()}
    found["op_db"], found["op_db_wrong"] = check_samples(options.samples) if options.samples \
        else ({}, [])
    wrong = {name: about["wrong"][:3] for name, about in found["operators"].items()
             if about["wrong"]}
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(found, file)
    made = sum(sum(about["types"].values()) for about in found["operators"].values())
    print(f"{found['device']}: {len(found['operators'])} operators, {made} results and "
          f"{sum(found['op_db'].values())} of op_db's samples were made again")
    for name, words in wrong.items():
        print(name, *words, sep="\n    ")
    print(*found["op_db_wrong"][:20], sep="\n")
    bad = wrong or found["op_db_wrong"] or found["without_calls"] or found["not_listed"]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
