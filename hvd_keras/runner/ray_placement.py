"""Where the workers of a Ray job go: what they need, whether there is room, the placement group."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

__all__ = ["Plan", "current_group", "make_group", "require_room"]

# A node that has room for all workers gives it within milliseconds.
_ONE_NODE_SECONDS = 2


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a job needs.

    Attributes:
        worker: the resources of one worker, for example {"CPU": 1, "GPU": 1}.
        bundles: how many bundles there are.
        workers_per_bundle: how many workers go into each.
        spread: whether each bundle needs a node of its own; else they are packed.
    """

    worker: dict[str, float]
    bundles: int
    workers_per_bundle: int = 1
    spread: bool = False

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return self.bundles * self.workers_per_bundle

    @property
    def bundle(self) -> dict[str, float]:
        """The resources of one bundle."""
        return {name: amount * self.workers_per_bundle for name, amount in self.worker.items()}

    def __str__(self) -> str:
        where = f" on each of {self.bundles} nodes" if self.spread else ""
        count = self.workers_per_bundle if self.spread else self.workers
        return f"{count} worker{'s' * (count != 1)} of {_text(self.worker)}{where}"


def require_room(plan: Plan) -> None:
    """Checks that the cluster can hold the workers when it is idle.

    Where an autoscaler may add nodes, nothing is checked: the placement group waits for them.

    Raises:
        ValueError: it cannot; the message says what there is.
    """
    if _may_grow():
        return
    nodes = [node for node in ray.nodes() if node["Alive"]]
    rooms = [_times(node["Resources"], plan.bundle) for node in nodes]
    room = sum(min(1, fitting) for fitting in rooms) if plan.spread else sum(rooms)
    if room < plan.bundles:
        found = ", ".join(
            f"{node['NodeManagerHostname']} ({_text(_of_interest(node['Resources']))})"
            for node in nodes
        )
        what = "such nodes" if plan.spread else "such workers"
        raise ValueError(
            f"{plan} were asked for, but the Ray cluster has room for {room} {what} even when it "
            f"is idle: {found}. Ask for fewer or smaller workers, or add nodes"
        )


def current_group(plan: Plan) -> PlacementGroup | None:
    """Returns the placement group that this task or actor runs in; None where it is in none.

    Raises:
        ValueError: the workers do not fit into it.
    """
    group = ray.util.get_current_placement_group()
    if group is None:
        return None
    bundles = [dict(bundle) for bundle in group.bundle_specs]
    own = {name: amount for name, amount in _own_resources().items() if name in ("CPU", "GPU")}
    for bundle in bundles:
        if all(bundle.get(name, 0) >= amount for name, amount in own.items()):
            for name, amount in own.items():
                bundle[name] -= amount
            break
    room = sum(_times(bundle, plan.worker) for bundle in bundles)
    if room < plan.workers:
        raise ValueError(
            f"{plan} were asked for, but the placement group that this runs in has room for "
            f"{room}: {', '.join(_text(bundle) for bundle in bundles)} beside what this task or "
            "actor uses itself. Make it larger, ask for fewer workers, or pass "
            "use_current_placement_group=False"
        )
    return group


def make_group(plan: Plan, timeout: float) -> PlacementGroup:
    """Makes a placement group, with the workers on one node where there is room, else packed.

    Raises:
        TimeoutError: the resources did not become free within ``timeout`` seconds.
    """
    bundles = [plan.bundle for _ in range(plan.bundles)]
    if not plan.spread and _one_node_may_do(plan):
        group = _group_within(bundles, "STRICT_PACK", min(_ONE_NODE_SECONDS, timeout))
        if group is not None:
            return group
    group = _group_within(bundles, "STRICT_SPREAD" if plan.spread else "PACK", timeout)
    if group is None:
        raise TimeoutError(
            f"there was no room for {plan} within {timeout:g} s "
            f"(placement_group_timeout_s): of {_text(_of_interest(ray.cluster_resources()))} in "
            f"the Ray cluster, {_text(_of_interest(ray.available_resources()))} are free. "
            "Other jobs use the rest, or, with an autoscaler, new nodes have not come"
        )
    return group


def _group_within(
    bundles: Sequence[Mapping[str, float]], strategy: str, seconds: float
) -> PlacementGroup | None:
    group = placement_group([dict(bundle) for bundle in bundles], strategy=strategy)
    is_ready = False
    try:
        is_ready = group.wait(seconds)
    finally:
        if not is_ready:
            remove_placement_group(group)
    return group if is_ready else None


def _one_node_may_do(plan: Plan) -> bool:
    rooms = [_times(node["Resources"], plan.bundle) for node in ray.nodes() if node["Alive"]]
    return max(rooms, default=0) >= plan.bundles


def _times(resources: Mapping[str, float], wanted: Mapping[str, float]) -> int:
    """How often ``wanted`` fits into ``resources``."""
    needed = {name: amount for name, amount in wanted.items() if amount > 0}
    # Ray counts in ten thousandths; the addend keeps 0.3 / 0.1 from being 2.
    return min(
        (int(resources.get(name, 0) / amount + 1e-9) for name, amount in needed.items()), default=0
    )


def _own_resources() -> dict[str, float]:
    with contextlib.suppress(AttributeError, RuntimeError):
        return ray.get_runtime_context().get_assigned_resources()
    return {}


def _may_grow() -> bool:
    """Whether an autoscaler is at work."""
    # Ray has no public function for it, and its own libraries use this one.
    with contextlib.suppress(Exception):
        from ray._private.state import state

        return state.get_max_resources_from_cluster_config() is not None
    return False


def _of_interest(resources: Mapping[str, float]) -> dict[str, float]:
    return {name: resources.get(name, 0) for name in ("CPU", "GPU")}


def _text(resources: Mapping[str, float]) -> str:
    named = [f"{amount:g} {name}" for name, amount in resources.items() if amount]
    return " and ".join(named) or "0 CPU"
