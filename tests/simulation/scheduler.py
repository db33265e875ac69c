"""One line of time: events by simulated seconds, ties broken by the seed. Waiting is a greenlet, never a thread."""

import heapq
from collections.abc import Callable
from random import Random

from greenlet import greenlet

_MASK = (1 << 64) - 1


class Scheduler:
    """Runs events one after the other. `digest` tells two runs apart: it covers the time and order of every step.

    An event may belong to a life (a daemon's or a worker process'): it is dropped once that is `over`, and held back
    while it is stopped (`resumes_at`).
    """

    def __init__(self, seed: str) -> None:
        self.now = 0.0
        self.steps = 0
        self.digest = 0
        self.stopped = False
        self._random = Random(f"{seed}/ties").random
        self._heap: list = []
        self._number = 0

    def at(self, when: float, do: Callable[[], None], life=None) -> None:
        """Do that then, or as soon as the life it belongs to can."""
        self._number += 1
        heapq.heappush(self._heap, (when, self._random(), self._number, life, do))

    def run(self, until: float) -> None:
        """Do what is due until then, or until `stopped`."""
        heap = self._heap
        while heap and not self.stopped and heap[0][0] <= until:
            when, _, number, life, do = heapq.heappop(heap)
            if life is not None:
                if life.over:
                    continue
                resumes = life.resumes_at()
                if resumes > when:
                    heapq.heappush(heap, (resumes, self._random(), number, life, do))
                    continue
            self.now = when
            self.steps += 1
            self.digest = (self.digest * 1000003 ^ hash((when, number))) & _MASK
            do()
        if not self.stopped:
            self.now = max(self.now, until)


class Waiter:
    """Runs a function that waits: each `wait` gives the line of time to others until somebody calls `resume`.

    To be made, started and resumed by events of the scheduler, which all run in one greenlet.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._greenlet = greenlet(lambda _: function())

    def resume(self, value=None) -> None:
        """Go on with what `wait` was to return, until the next wait or the end."""
        self._greenlet.switch(value)

    def wait(self):
        """Called from inside: let others go on."""
        return self._greenlet.parent.switch()
