"""Hold the connection to a Ray cluster, in a process of its own that the cluster's Python runs. Only it imports Ray.

`engine` starts this file by its path, sends one line of JSON per request and reads one per event. Ray ends this process
if it loses the head of the cluster, and all actors end with it: the daemon then starts another one.

Requests: `{"place": {…}, "slot": 0}`, `{"send": line, "worker": …}`, `{"kill": worker}`, `{"release": true}`.
Events: `{"worker": …}` with `placed`, `report`, `halted` or `exited`; `{"alive": true}`; `{"fatal": reason}`.
"""

import contextlib
import json
import os
import runpy
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO

_PACKAGE: Final = Path(__file__).resolve().parents[3]
_ALIVE_SECONDS: Final = 2.0
_SILENT_BEATS: Final = 4
"""An actor is lost after so many times `BEAT_SECONDS` without an event: long before Ray gives up its node."""

_CONNECT_SECONDS: Final = 60.0
_SHARE_OF_GPU: Final = 0.25  # the processes of a slot share its GPU: the active one, the standby, and one that ends
_KILLED: Final = -9


class Bridge:
    """Create the actors of worker processes, and follow each in a thread."""

    def __init__(self, ray: Any, actor: Any, cluster: Mapping[str, Any], events: TextIO) -> None:
        self._ray, self._actor, self._cluster, self._events = ray, actor, cluster, events
        self._writing = threading.Lock()
        self._group: Any = None
        self._actors: dict[str, Any] = {}
        self._killed = set[str]()

    def tell(self, event: Mapping[str, Any]) -> None:
        """Send an event to the daemon."""
        with self._writing:
            print(json.dumps(event), file=self._events, flush=True)

    def obey(self, request: Mapping[str, Any]) -> None:
        """Do what the daemon asks for."""
        if "place" in request:
            self._place(request["place"], request["slot"])
        elif "send" in request and (actor := self._actors.get(request["worker"])) is not None:
            actor.send.options(concurrency_group="commands").remote(request["send"])
        elif "kill" in request and (actor := self._actors.get(request["kill"])) is not None:
            self._killed.add(request["kill"])
            self._ray.kill(actor, no_restart=True)
        elif "release" in request:
            self._release()

    def _place(self, place: Mapping[str, Any], slot: int | None) -> None:
        """Create the actor of a worker in the bundle of its slot. It waits until the cluster has the resources."""
        if self._group is None:
            self._group = self._new_group()
        gpu = self._cluster["gpu"] and slot is not None
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=-1 if slot is None else slot
        )
        worker = place["worker"]
        # A group of one thread keeps the commands in order.
        actor = self._ray.remote(concurrency_groups={"commands": 1, "events": 1})(self._actor.WorkerActor).options(
            num_cpus=0,
            num_gpus=_SHARE_OF_GPU if gpu else 0,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=strategy,
        )
        self._actors[worker] = actor.remote(place, None if gpu else "-1")
        threading.Thread(target=self._follow, args=(worker, self._actors[worker]), daemon=True).start()

    def _new_group(self) -> Any:
        """Ask for one place per slot, each on a machine of its own."""
        bundle = {**self._cluster["resources"], **({"GPU": 1.0} if self._cluster["gpu"] else {})}
        size, labels = self._cluster["workers"], self._cluster["labels"]
        selectors = {"bundle_label_selector": [labels] * size} if labels else {}
        return self._ray.util.placement_group([bundle] * size, strategy="STRICT_SPREAD", **selectors)

    def _release(self) -> None:
        """Give the places back. Ray ends the actors in them."""
        group, self._group = self._group, None
        if group is not None:
            self._ray.util.remove_placement_group(group)

    def _follow(self, worker: str, actor: Any) -> None:
        """Tell the daemon what happens to a worker, until it has ended or its machine does not answer."""
        try:
            exited = self._relay(worker, actor)
        except Exception as error:  # noqa: BLE001 - Ray raises what it likes
            first = str(error).strip().splitlines() or [""]
            exited = _lost(f"its Ray actor has ended: {type(error).__name__}: {first[0]}")
        del self._actors[worker]
        with contextlib.suppress(Exception):
            self._ray.kill(actor, no_restart=True)
        self._killed.discard(worker)
        self.tell({"worker": worker, "exited": exited})

    def _relay(self, worker: str, actor: Any) -> dict[str, Any]:
        """Relay the events of an actor up to its last, and return that."""
        placed = actor.placed.options(concurrency_group="events").remote()
        while not self._ray.wait([placed], timeout=self._actor.BEAT_SECONDS)[0]:  # as long as the cluster has no place
            if worker in self._killed:
                return _lost("it was killed before it had a machine")
        if about := self._ray.get(placed):
            self.tell({"worker": worker, "placed": about})
        events = actor.events.options(concurrency_group="events", num_returns="streaming").remote()
        silent = 0
        while True:
            if not self._ray.wait([events], timeout=self._actor.BEAT_SECONDS)[0]:
                silent += 1
                if silent >= _SILENT_BEATS or worker in self._killed:
                    seconds = silent * self._actor.BEAT_SECONDS
                    return _lost(f"its machine {about.get('host')} has not answered for {seconds:.0f} s")
                continue
            silent = 0
            if not (line := self._ray.get(next(events))):
                continue
            event = json.loads(line)
            if "exited" in event:
                return dict(event["exited"])
            self.tell({"worker": worker, **event})


def _lost(why: str) -> dict[str, Any]:
    """Return the fields of `process.Exited` for a worker that Ray lost."""
    return {"status": _KILLED, "tail": "", "why": why}


def main() -> None:
    """Connect to the cluster that the first line names, and obey the following ones until standard input ends."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # Ray prints for people
    lines = iter(sys.stdin.readline, "")
    cluster = json.loads(next(lines))
    connecting = threading.Timer(_CONNECT_SECONDS, _give_up, (events, cluster["address"]))
    connecting.daemon = True
    connecting.start()
    try:
        import ray  # noqa: PLC0415 - an event says why it cannot be imported
        import ray.util.scheduling_strategies  # noqa: PLC0415 - likewise

        from sidecar.daemon.workers.ray import actor  # noqa: PLC0415 - the package is importable only now

        ray.cloudpickle.register_pickle_by_value(actor)
        ray.init(address=cluster["address"], log_to_driver=False, configure_logging=False)
    except Exception as error:  # noqa: BLE001 - Ray raises what it likes
        _fatal(events, f"{type(error).__name__}: {' '.join(str(error).split())}")
    connecting.cancel()
    bridge = Bridge(ray, actor, cluster, events)
    threading.Thread(target=_beat, args=(bridge,), daemon=True).start()
    for line in lines:
        try:
            bridge.obey(json.loads(line))
        except Exception as error:  # noqa: BLE001 - Ray raises what it likes
            _fatal(events, f"{type(error).__name__}: {' '.join(str(error).split())}")
    os._exit(0)  # Ray ends the actors of a driver that is gone


def _beat(bridge: Bridge) -> None:
    """Show the daemon that this process is alive."""
    while True:
        bridge.tell({"alive": True})
        time.sleep(_ALIVE_SECONDS)


def _give_up(events: TextIO, address: str) -> None:
    _fatal(
        events,
        f"no connection to {address} within {_CONNECT_SECONDS:.0f} s: does the head run, and a node of the cluster on "
        f"this machine? `ray start --address={address} --num-cpus=0` starts one",
    )


def _fatal(events: TextIO, reason: str) -> None:
    """Report why this process cannot go on, and end it, whatever other threads do."""
    print(json.dumps({"fatal": reason}), file=events, flush=True)
    os._exit(1)


if __name__ == "__main__":
    runpy.run_path(str(_PACKAGE / "evaluation" / "__main__.py"))["_make_sidecar_importable"](_PACKAGE)
    main()
