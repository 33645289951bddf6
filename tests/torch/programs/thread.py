"""One thread of a random program (program.py): its tensors, each with its shadow on the CPU, and
what it does with them, drawn from the seed and the thread's number."""

import math
import random

import torch

import firn
from operators import CHANGES, MAKES, Draw, may_change

MIB = 1 << 20
OPERATORS = [*MAKES, *CHANGES]
WEIGHTS = [each.weight for each in OPERATORS]
COUNTS = ("operators", "changed", "compared", "compared_bytes", "freed", "copied_in", "copied_out",
          "streams", "events", "hints", "refused", "lost", "given_up")


class Wrong(Exception):
    pass


class Family:
    """Tensors that share memory."""

    def __init__(self, shared=False):
        self.shared, self.history, self.gone = shared, [], False


class Pair:
    def __init__(self, gpu, cpu, family):
        self.gpu, self.cpu, self.family = gpu, cpu, family


def as_bytes(tensor):
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    flat.copy_(tensor.detach().resolve_conj().resolve_neg().reshape(-1))
    return flat.view(torch.uint8)


def is_a_refusal(error):
    words = str(error)
    return isinstance(error, torch.OutOfMemoryError) or any(
        part in words for part in ("CUDA", "cuda", "firn", "out of memory"))


def is_a_loss(error):
    words = str(error)
    return any(part in words for part in ("lost", "LOST", "cannot be read", "corrupt"))


class Thread:
    def __init__(self, number, options, shared):
        self.number, self.options = number, options
        self.draw = Draw(random.Random(options.seed * 1000 + number))
        self.pairs, self.shared = [], shared
        self.counts = dict.fromkeys(COUNTS, 0)
        self.step, self.held, self.error = 0, 0, None
        self.spoil_at = options.spoil if number == 0 else None

    def run(self):
        try:
            self.streams = [torch.cuda.Stream() for _ in range(2)]
            own = self.streams[0] if self.number % 2 else torch.cuda.current_stream()
            own.wait_stream(torch.cuda.default_stream())
            with torch.cuda.stream(own):
                for self.step in range(self.options.steps):
                    self.one_step()
                self.compare_all()
                self.pairs.clear()
                self.refusable(own.synchronize, [])
        except Exception as error:  # told by the main thread
            self.error = error

    # One step.

    def one_step(self):
        kind = self.draw.below(100)
        if self.held < 0.7 * self.options.bytes and self.draw.one_in(2):
            self.make(large=True)
        elif kind < 14 or len(self.pairs) < 4:
            self.make(self.draw.one_in(2))
        elif kind < 68:
            self.operate()
        elif kind < 71:
            self.free_some()
        elif kind < 82:
            self.compare(self.draw.of(self.pairs))
        elif kind < 88:
            self.copy_in()
        elif kind < 92:
            self.hint()
        elif kind < 96:
            self.event()
        elif kind < 99:
            self.refusable(torch.cuda.empty_cache, [])
        elif self.draw.one_in(6):
            self.compare_all()
        self.free_what_is_too_much()
        if self.spoil_at is not None and self.step >= self.spoil_at:
            self.spoil()
            self.compare_all()

    def refusable(self, call, written):
        """The call's result; None where it was refused, as it may be. `written`: families of whom
        nobody knows then what is in them."""
        try:
            return call()
        except RuntimeError as error:
            if not (self.options.refusals and is_a_refusal(error)):
                raise
            self.counts["lost" if is_a_loss(error) else "refused"] += 1
            for family in written:
                self.give_up(family)
            return None

    def give_up(self, family):
        if family.shared:
            return
        self.counts["given_up"] += 1
        family.gone = True
        self.pairs = [each for each in self.pairs if each.family is not family]

    def make(self, large):
        """Blocks of less than 1 MiB stay on the device: most bytes are in others."""
        most = math.log2(self.options.largest / MIB)
        size = int(MIB * 2 ** (most * self.draw.random.random())) if large else \
            int(2 ** (3 + 15 * self.draw.random.random()))
        cpu = self.draw.fresh(size)
        pinned = self.draw.one_in(3)

        def call():
            if pinned:
                return cpu.pin_memory().to("cuda", non_blocking=True)
            return cpu.to("cuda")

        gpu = self.refusable(call, [])
        if gpu is not None:
            self.counts["copied_in"] += 1
            self.keep(gpu, cpu, Family())

    def keep(self, gpu, cpu, family):
        if gpu.dtype != cpu.dtype or gpu.shape != cpu.shape:
            raise Wrong(f"{gpu.dtype} {tuple(gpu.shape)} and {cpu.dtype} {tuple(cpu.shape)}")
        if cpu.dim() == 0:
            gpu, cpu = gpu.view(1), cpu.view(1)
        if cpu.numel():
            self.pairs.append(Pair(gpu, cpu, family))

    def operate(self):
        operator = self.draw.random.choices(OPERATORS, WEIGHTS)[0]
        operands = self.operands(operator)
        if operands is None:
            return
        call = operator.build(self.draw, *(each.cpu for each in operands))
        if call is None:
            return
        with torch.no_grad() if operator.name != "gradient" else torch.enable_grad():
            shadows = call(*(each.cpu for each in operands))
            written = [each.family for each in operands[:operator.changes]]
            results = self.refusable(lambda: self.on_some_stream(call, operands), written)
        self.counts["operators"] += 1
        for family in written:
            self.counts["changed"] += 1
            family.history.append(f"{self.step}:{operator.name}")
        if results is None or operator.changes:
            return
        if isinstance(results, torch.Tensor):
            results, shadows = [results], [shadows]
        for gpu, cpu in zip(results, shadows, strict=True):
            self.keep(gpu, cpu, self.family_of(operator, gpu, cpu, operands))

    def family_of(self, operator, gpu, cpu, operands):
        """A view's is its operand's: on the device as on the CPU."""
        for each in operands:
            views = [one.untyped_storage()._cdata == other.untyped_storage()._cdata
                     for one, other in ((gpu, each.gpu), (cpu, each.cpu))]
            if views[0] != views[1]:
                raise Wrong(f"{operator.name}: a view on one side alone")
            if views[0]:
                return each.family
        family = Family()
        family.history.append(f"{self.step}:{operator.name}")
        return family

    def operands(self, operator):
        """Distinct ones, mostly alike where the operator takes several."""
        if operator.changes:
            pool = [each for each in self.pairs if not each.family.shared and may_change(each.cpu)]
        else:
            pool = [*self.pairs, *self.shared]
        if not pool:
            return None
        first = self.draw.of(pool)
        found, others = [first], pool
        if operator.operands > 1:
            others = [each for each in [*self.pairs, *self.shared]
                      if each.family is not first.family and each.cpu.dtype == first.cpu.dtype and
                      (each.cpu.shape == first.cpu.shape or operator.name in ("joined", "product"))]
        if operator.changes > 1:
            others = [each for each in others if not each.family.shared and may_change(each.cpu)]
        families = {first.family}
        while len(found) < operator.operands:
            others = [each for each in others if each.family not in families]
            if not others:
                return self.with_a_like_one(operator, found)
            found.append(self.draw.of(others))
            families.add(found[-1].family)
        return found

    def with_a_like_one(self, operator, found):
        """Nothing is like the first: something is made that is."""
        first = found[0]
        while len(found) < operator.operands:
            cpu = first.cpu.flip(0).contiguous()
            gpu = self.refusable(lambda: cpu.to("cuda"), [])
            if gpu is None:
                return None
            found.append(Pair(gpu, cpu, Family()))
            self.pairs.append(found[-1])
        return found

    def on_some_stream(self, call, operands):
        tensors = [each.gpu for each in operands]
        if not self.draw.one_in(6):
            return call(*tensors)
        self.counts["streams"] += 1
        current, side = torch.cuda.current_stream(), self.draw.of(self.streams)
        side.wait_stream(current)
        try:
            with torch.cuda.stream(side):
                results = call(*tensors)
        finally:
            current.wait_stream(side)
        made = [results] if isinstance(results, torch.Tensor) else results or ()
        for tensor in tensors:
            tensor.record_stream(side)
        for tensor in made:
            tensor.record_stream(current)
        return results

    def copy_in(self):
        """Into a part of a tensor that is there."""
        pair = self.draw.of(self.pairs)
        if pair.family.shared or not may_change(pair.cpu):
            return
        source = pair.cpu.flip(0).contiguous()
        if self.draw.one_in(2):
            source = self.refusable(source.pin_memory, [])
        if source is None:
            return
        pair.cpu.copy_(source)
        self.refusable(lambda: pair.gpu.copy_(source, non_blocking=True), [pair.family])
        pair.family.history.append(f"{self.step}:copy_in")
        self.counts["copied_in"] += 1

    def event(self):
        def call():
            event = torch.cuda.Event()
            event.record()
            if self.draw.one_in(2):
                self.draw.of(self.streams).wait_event(event)
            event.query()
            if self.draw.one_in(3):
                event.synchronize()

        self.counts["events"] += 1
        self.refusable(call, [])

    def hint(self):
        pair = self.draw.of(self.pairs)
        self.counts["hints"] += 1

        def call():
            kind = self.draw.below(4)
            if kind == 0:
                firn.cold(pair.gpu)
            elif kind == 1:
                firn.prefetch(pair.gpu)
            elif kind == 2 and pair.cpu.nbytes < 1 << 16:
                firn.pin(pair.gpu)
                firn.unpin(pair.gpu)

        if firn.enabled():
            self.refusable(call, [])

    # Frees.

    def free_some(self):
        family = self.draw.of(self.pairs).family
        if self.draw.one_in(3):  # one of its views alone
            self.pairs.remove(self.draw.of(self.pairs))
        else:
            self.pairs = [each for each in self.pairs if each.family is not family]
        self.counts["freed"] += 1

    def free_what_is_too_much(self):
        while self.too_much():
            family = self.draw.of(self.too_much()).family
            self.pairs = [each for each in self.pairs if each.family is not family]
            self.counts["freed"] += 1

    def too_much(self):
        """Those of whom some have to go: of all, or of those that stay on the device."""
        storages = {each.cpu.untyped_storage()._cdata: each.cpu.untyped_storage().nbytes()
                    for each in self.pairs}
        self.held = sum(storages.values())
        if self.held > self.options.bytes or len(self.pairs) > 400:
            return self.pairs
        small = [size for size in storages.values() if size < MIB]
        if sum(small) <= self.options.small:
            return []
        return [each for each in self.pairs if each.cpu.untyped_storage().nbytes() < MIB]

    # Comparisons.

    def compare(self, pair):
        asynchronous = self.draw.one_in(3)

        def call():
            if not asynchronous:
                return pair.gpu.cpu()
            target = torch.empty(pair.gpu.shape, dtype=pair.gpu.dtype, pin_memory=True)
            target.copy_(pair.gpu, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            event.synchronize()
            return target

        found = self.refusable(call, [pair.family])
        self.counts["copied_out"] += 1
        if found is None:
            return
        self.counts["compared"] += 1
        self.counts["compared_bytes"] += pair.cpu.nbytes
        mine, right = as_bytes(found), as_bytes(pair.cpu)
        if torch.equal(mine, right):
            return
        differ = (mine != right).nonzero().view(-1)
        first = int(differ[0])
        raise Wrong(
            f"thread {self.number}, step {self.step}: {pair.cpu.dtype} {tuple(pair.cpu.shape)} of "
            f"{pair.cpu.nbytes} bytes: {len(differ)} differ, {first} to {int(differ[-1])}: "
            f"{bytes(mine[first:first + 8].tolist()).hex()} for "
            f"{bytes(right[first:first + 8].tolist()).hex()}; {pair.family.history[-8:]}")

    def compare_all(self):
        for pair in [*self.pairs, *self.shared]:
            if not pair.family.gone:
                self.compare(pair)

    def spoil(self):
        """As a fault of Firn's would: on the device alone."""
        for pair in self.pairs:
            if pair.cpu.is_contiguous() and not pair.family.shared and \
                    pair.cpu.dtype in (torch.float32, torch.int32):
                pair.gpu.view(-1)[:1].view(torch.uint8)[:1].bitwise_xor_(1)
                self.spoil_at = None
                return
