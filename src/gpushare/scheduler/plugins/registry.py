"""Creates the plugins, in the order in which they are called: built-in ones, then third-party ones that the user enables."""

from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from gpushare.options.option import InvalidSettings
from gpushare.scheduler.core import Core
from gpushare.scheduler.framework.interface import Handle
from gpushare.scheduler.framework.runtime import Enabled
from gpushare.scheduler.framework.services import (
    NO_GANGS,
    NO_POLICIES,
    NO_QUOTAS,
    AnyTarget,
    NodePolicies,
    PodQuotas,
)
from gpushare.scheduler.framework.services import Gangs as GangsOfPods
from gpushare.scheduler.plugins.elastic_quota.plugin import ElasticQuotas
from gpushare.scheduler.plugins.explain.plugin import Explanations
from gpushare.scheduler.plugins.explain.pod_lifecycle_log import PodLifecycleLog
from gpushare.scheduler.plugins.gangs.plugin import Gangs
from gpushare.scheduler.plugins.pod_groups.plugin import PodGroups
from gpushare.scheduler.plugins.preemption.extender_preempt import PreemptVerb
from gpushare.scheduler.plugins.preemption.nominations import Nominations
from gpushare.scheduler.plugins.preemption.plugin import Preemptor
from gpushare.scheduler.plugins.resource_policy.wiring import ResourcePolicyPlugin

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: Entry point group of third-party plugins: ``name = "module:factory"``, where the factory is a ``framework.interface.Factory``.
GROUP: Final = "gpushare.scheduler_plugins"


def built_in(core: Core, handle: Handle, *, without: Container[str] = ()) -> Iterator[Enabled]:
    """The built-in plugins except those named in ``without``, which are replaced by their stand-ins (``framework.services``)."""
    cache, clock = handle.cache, handle.clock
    policies = None if "resource-policy" in without else ResourcePolicyPlugin(handle)
    rules: NodePolicies = NO_POLICIES if policies is None else policies
    elastic = None if "elastic-quota" in without else ElasticQuotas(handle)
    quotas: PodQuotas = NO_QUOTAS if elastic is None else elastic
    gangs = None
    if "gangs" not in without:
        gangs = Gangs(
            cache, clock, quotas=quotas, governs=rules.governs, retry=handle.retry, placed=handle.placed
        )
        handle.resynced.subscribe(gangs.give_up_all)
    # Not `gangs or NO_GANGS`: gangs is false while it has no pods.
    gangs_service: GangsOfPods = NO_GANGS if gangs is None else gangs
    decisions = None if "decisions" in without else Explanations(handle, gangs_service, rules, quotas)
    preemptor = None
    if "preemption" not in without:
        preemptor = Preemptor(
            cache,
            handle.client,
            handle.recorder,
            clock,
            in_turn=rules.by_unit,
            must_lead=handle.must_lead,
            gangs=gangs_service,
            quotas=quotas,
        )
        preemptor.retry_wanted.subscribe(handle.retry)
        if decisions is not None:
            preemptor.decided.subscribe(decisions.preempted)

    if "pod-log" not in without:
        yield Enabled("pod-log", PodLifecycleLog(cache, decisions))
    if gangs is not None:
        yield Enabled("gangs", gangs)
    if "pod-groups" not in without:
        yield Enabled("pod-groups", PodGroups(handle))
    if elastic is not None:
        # After plugins that wait in Permit: other pods may use up the quota meanwhile.
        yield Enabled("elastic-quota", elastic)
    if policies is not None:
        yield Enabled("resource-policy", policies)
    if "requeue" not in without:
        yield Enabled("requeue", core.requeuer)
    if preemptor is not None:
        yield Enabled("preemption", preemptor)
        if "preempt-verb" not in without:
            verb = PreemptVerb(cache, handle.client, preemptor.left_to_scheduler, rules, decisions, quotas)
            yield Enabled("preempt-verb", verb)
    yield from _off_by_default(core, handle, policies, quotas, without)
    if preemptor is not None and "nominations" not in without:
        yield Enabled("nominations", Nominations(cache, preemptor.room_reserved, quotas))
    if decisions is not None:
        yield Enabled("decisions", decisions)


def _off_by_default(
    core: Core,
    handle: Handle,
    policies: ResourcePolicyPlugin | None,
    quotas: PodQuotas,
    without: Container[str],
) -> Iterator[Enabled]:
    """The plugins that are off by default. They are imported only if enabled, to keep start-up short."""
    settings = core.settings
    if settings.defragmentation is not None and "defragmentation" not in without:
        from gpushare.scheduler.plugins.defragmentation.plugin import Defragmenter
        from gpushare.scheduler.plugins.resource_policy.move_targets import PolicyPlaces

        count = core.metrics.defragmentations
        defragmenter = Defragmenter(
            handle.cache,
            handle.client,
            handle.recorder,
            handle.clock,
            settings.defragmentation,
            AnyTarget() if policies is None else PolicyPlaces(policies),
            quotas=quotas,
            must_lead=handle.must_lead,
            retry=handle.retry,
            count=lambda result: count.labels(result).inc(),
        )
        handle.resynced.subscribe(defragmenter.took_over)
        yield Enabled("defragmentation", defragmenter)
    if settings.autoscaling is not None and "autoscaling" not in without:
        from gpushare.scheduler.plugins.autoscaling.plugin import Autoscaler

        yield Enabled("autoscaling", Autoscaler(handle, settings.autoscaling, quotas))


def third_party(handle: Handle, arguments: Mapping[str, Mapping[str, Any]]) -> Iterator[Enabled]:
    """The plugins that ``arguments`` names, in its order. The argument ``weight`` is the weight of a plugin's scores.

    Raises ``InvalidSettings`` with the plugin's name and what to do.
    """
    if not arguments:
        return
    from importlib.metadata import entry_points  # slow to import, and mostly not needed

    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    for name, plugin_arguments in arguments.items():
        if name not in installed:
            available = ", ".join(sorted(installed)) or "none"
            raise InvalidSettings(
                [
                    f"plugin {name} is not installed; installed are: {available}. Install its package into the image"
                ]
            )
        weight = plugin_arguments.get("weight", 1)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= 100:
            raise InvalidSettings([f"plugin {name}: weight: give a number above 0 and at most 100"])
        factory_arguments = {key: value for key, value in plugin_arguments.items() if key != "weight"}
        yield Enabled(name, _create(installed[name], handle, factory_arguments), float(weight))


def _create(entry: "EntryPoint", handle: Handle, arguments: Mapping[str, Any]) -> object:
    try:
        factory = entry.load()
    except (ImportError, AttributeError) as error:
        raise InvalidSettings([f"plugin {entry.name}: {entry.value} cannot be imported: {error}"]) from error
    try:
        plugin: object = factory(handle, arguments)
    except (ValueError, TypeError) as error:
        raise InvalidSettings([f"plugin {entry.name}: {error}"]) from error
    return plugin
