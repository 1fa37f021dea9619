"""The processes of one training run: started by `torchrun`, joined here, the first of them leading.

The leader owns the log, the checkpoints and the terminal; the others do what it asks and say nothing. When one of them fails, the leader
says why in one line, and all end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from lob.errors import TapeproofError, first_line

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

PATIENCE = timedelta(days=1)
"""How long a process waits for another: longer than any validation or checkpoint. One that has died is noticed at once."""

GRACE_S = 10.0
"""How long a failed follower stays, so that the leader can say why before `torchrun` ends it: many times what that takes."""

WORD_S = 3.0
"""How long the leader waits for the last words of a process that it has lost."""


class PeerLost(TapeproofError):
    """Another process of the run has failed; the line says how, as far as it could tell."""

    exit_code = 1


def rank() -> int:
    """Which of `torchrun`'s processes this is; 0 leads. 0 without `torchrun`."""
    return int(os.environ["RANK"]) if "TORCHELASTIC_RUN_ID" in os.environ else 0


def processes() -> int:
    """How many processes `torchrun` has started; 1 without it."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def hush() -> None:
    """Silence a follower: whatever it would print, the leader prints."""
    sys.stdout.flush()
    sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of them: the leader decides what it means


def linger() -> None:
    """Let the leader speak before the end of this process ends all of them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    time.sleep(GRACE_S)


class Peers:
    """The processes of a run, joined; alone, every exchange is with oneself. `rank` 0 leads.

    `send`, `receive` and `tell` carry pickled objects between processes of one run and nothing else. Raises PeerLost from any exchange when
    another process is gone.
    """

    def __init__(self, rank: int = 0, size: int = 1, device: str = "cpu") -> None:
        self.rank, self.size = rank, size
        if size == 1:
            return
        import torch.distributed as dist
        from torch.distributed.rendezvous import rendezvous

        store, _, _ = next(rendezvous("env://", rank, size, timeout=PATIENCE))
        self._last_words = dist.PrefixStore("tapeproof", store)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=PATIENCE)
        # Groups of our own: modules of torch that are imported later keep the default one, and with it its connections, for good.
        self._hosts = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._devices = dist.new_group(backend="nccl", timeout=PATIENCE) if device == "cuda" else self._hosts

    def close(self) -> None:
        """Part from the others; who still waits for this process is told so by its connection."""
        if self.size > 1:
            import torch.distributed as dist

            del self._hosts, self._devices  # connections live as long as anything holds their group
            dist.destroy_process_group()

    def add(self, parts: Sequence[torch.Tensor]) -> None:
        """Put the sum of a tensor over all shards in place of each of this process's, in the order of shards: no arrangement of them in
        processes changes a bit of it."""
        import torch

        stacked = torch.stack(list(parts))
        if self.size > 1:
            import torch.distributed as dist

            gathered = [torch.empty_like(stacked) for _ in range(self.size)]
            self._try(lambda: dist.all_gather(gathered, stacked, group=self._devices))
            stacked = torch.cat(gathered)
        total = stacked[0].clone()
        for part in stacked[1:]:
            total += part
        for part in parts:
            part.copy_(total)

    def tell(self, message: Any = None) -> Any:
        """The leader's message, in every process."""
        if self.size == 1:
            return message
        import torch.distributed as dist

        told = [message]
        self._try(lambda: dist.broadcast_object_list(told, src=0, group=self._hosts))
        return told[0]

    def send(self, to: int, message: Any) -> None:
        """A message for the process `to`, which receives it."""
        import torch.distributed as dist

        self._try(lambda: dist.send_object_list([message], dst=to, group=self._hosts))

    def receive(self, source: int) -> Any:
        """The next message of the process `source`."""
        import torch.distributed as dist

        told = [None]
        self._try(lambda: dist.recv_object_list(told, src=source, group=self._hosts))
        return told[0]

    def in_turn(self, work: Callable[[], T]) -> T:
        """The work, done by the leader first: what it leaves on disk is there for the others."""
        made = work() if self.rank == 0 else None
        self.tell()
        return work() if made is None else made

    def leave_word(self, error: BaseException) -> None:
        """What the leader is to say of this process's failure."""
        line = str(error) if isinstance(error, TapeproofError) else f"{type(error).__name__}: {first_line(error)}"
        word = {"line": line, "exit_code": getattr(error, "exit_code", PeerLost.exit_code)}
        self._last_words.set("word", json.dumps(word))

    def _try(self, exchange: Callable[[], Any]) -> None:
        """Do it, or say why there is nobody to do it with. torch's errors of a lost connection have no class of their own."""
        try:
            exchange()
        except RuntimeError as error:
            raise self._lost() from error

    def _lost(self) -> PeerLost:
        deadline = time.monotonic() + (WORD_S if self.rank == 0 else 0)
        while time.monotonic() < deadline:
            if self._last_words.check(["word"]):
                word = json.loads(self._last_words.get("word"))
                error = PeerLost(word["line"])
                error.exit_code = word["exit_code"]
                return error
            time.sleep(0.05)
        return PeerLost("a process of this run has ended without a word")


@contextmanager
def joined(device: str) -> Iterator[Peers]:
    """The processes of this run, until the end of the block. A follower that fails leaves word of it first."""
    own, all_of_them = rank(), processes()
    if device == "cuda" and all_of_them > 1:
        _take_a_gpu(int(os.environ["LOCAL_RANK"]))
    peers = Peers(own, all_of_them, device)
    try:
        yield peers
    except PeerLost:
        raise
    except BaseException as error:
        if own:
            peers.leave_word(error)
        raise
    finally:
        peers.close()


def _take_a_gpu(which: int) -> None:
    """Make one GPU the only one that this process sees, before anything looks: torch and numba then agree on it."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = seen.split(",")[which] if seen else str(which)
