"""Programs whose memory comes and goes without end, through PyTorch on the software GPU: they are
told so, once, with the block, the line that waits, and the budget that would end it."""

import re

import pytest

import script_runs

MIB = 1 << 20
LOOP = """
import sys
import torch
xs = [torch.ones(4 << 20, device="cuda") for _ in range(6)]  # 16 MiB each
def step():
    for x in xs:
        x.add_(1)
for _ in range(int(sys.argv[1])):
    step()
torch.cuda.synchronize()
print("value", float(xs[0][0]))
"""
TRAINING = """
import sys
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(10)]).cuda()
data = torch.randn(2048, 512, device="cuda")  # 4 MiB
def step():
    model.zero_grad()
    model(data).square().mean().backward()
for _ in range(int(sys.argv[1])):
    step()
torch.cuda.synchronize()
"""
# Of the modelled SSD: so slow that waiting is most of what is done, by programs that compute
# nearly nothing, or something.
LOOPS, TRAINS = "64MiB/s", "24MiB/s"


def run(paths, tmp_path, script, steps, spill_dir, budget, policy, speed):
    done = script_runs.run_with_firn(paths, tmp_path, script, steps, budget=budget,
                                     dirs=[spill_dir], host="16MiB",
                                     environment={"FIRN_TEST_STORE_READ": speed,
                                                  "FIRN_TEST_STORE_WRITE": speed},
                                     options=["--policy", policy])
    assert done.status == 0, done.text
    return done, [line for line in done.text.splitlines() if line.startswith("firn: device 0: ")]


@pytest.mark.parametrize("policy", ["age", "lifetime"])
def test_a_loop_over_too_much(paths, tmp_path, spill_dir, policy):
    done, lines = run(paths, tmp_path, LOOP, 6, spill_dir, 48 * MIB, policy, LOOPS)
    (thrash,) = [line for line in lines if "thrash" in line]
    assert len(lines) <= 2 and all("storm" in line for line in lines if line != thrash), lines
    assert "for a block of 16MiB (allocated " in thrash or "for room for 16MiB" in thrash
    assert re.search(r"in aten::add_, <string>:7 in step \([0-9.]+ s in [0-9]+ waits\)", thrash)
    assert thrash.removeprefix("firn: device 0: ") in done.device()["notices"]
    (enough,) = re.findall(r"firn_budget:([0-9]+)MiB would stop the thrashing "
                           r"\(the budget is 48MiB now\)", thrash)
    assert 96 <= int(enough) <= 106
    again, lines = run(paths, tmp_path, LOOP, 6, spill_dir, int(enough) * MIB, policy, LOOPS)
    assert lines == [] and again.device()["faults"] == 0
    assert again.values("value") == done.values("value") == ["7.0"]


@pytest.mark.parametrize("policy", ["age", "lifetime"])
def test_a_training_step_that_needs_more(paths, tmp_path, spill_dir, policy):
    """What is allocated anew in each step: also by whom, and in autograd's threads."""
    _, lines = run(paths, tmp_path, TRAINING, 10, spill_dir, 48 * MIB, policy, TRAINS)
    (thrash,) = [line for line in lines if "thrash" in line]
    assert re.search(r", in aten::\w+, (backward of aten::\w+ at )?<string>:[0-9]+ in step \(",
                     thrash), thrash
    (enough,) = re.findall(r"firn_budget:([0-9]+)MiB would stop the thrashing", thrash)
    _, lines = run(paths, tmp_path, TRAINING, 12, spill_dir, int(enough) * MIB, policy,
                   TRAINS)
    assert lines == []
