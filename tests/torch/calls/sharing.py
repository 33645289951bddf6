"""What the other processes of sharing_calls.py do: importable, as spawned processes want it."""

import torch


def double(inbox, outbox):
    """Adds what came, as it came, doubles it in place, and lets go of it when told."""
    tensors = inbox.get()
    found = [each.sum().item() for each in tensors]
    for each in tensors:
        each.mul_(2)
    torch.cuda.synchronize()
    outbox.put(found)
    inbox.get()
    del tensors, each
    outbox.put(torch.cuda.memory_allocated())


def make(inbox, outbox):
    """Sends tensors of its own."""
    mine = [torch.full((size,), 3.0, device="cuda") for size in (100, 3 << 20)]
    outbox.put(mine)
    inbox.get()
    outbox.put([each.sum().item() for each in mine])
    inbox.get()


def follow(inbox, outbox):
    """Waits for an event of the sender's before it reads."""
    tensor, event = inbox.get()
    event.wait()
    outbox.put(tensor.sum().item())
    inbox.get()


class Other:
    """Another process, which runs one of these."""

    def __init__(self, what):
        import torch.multiprocessing as processes
        context = processes.get_context("spawn")
        self.inbox, self.outbox = context.Queue(), context.Queue()
        self.process = context.Process(target=what, args=(self.inbox, self.outbox))
        self.process.start()

    def tell(self, words):
        self.inbox.put(words)

    def hear(self):
        return self.outbox.get(timeout=120)

    def end(self):
        self.process.join(60)
        return self.process.exitcode
