"""Rules of the policy from the names of settings, whichever group they are in."""

from dataclasses import fields

from sidecar.policy.rules import EndRules, GroupRules, PlanRules, RetryRules, Rules
from sidecar.policy.selection import Selection

_GROUPS = {"selection": Selection, "retries": RetryRules, "groups": GroupRules, "plans": PlanRules, "ending": EndRules}
_GROUP_OF = {each.name: group for group, kind in _GROUPS.items() for each in fields(kind)}
NAMES = tuple(_GROUP_OF)


def make_rules(**settings) -> Rules:
    """Make rules from settings; those that are not given have their defaults."""
    given = {group: {} for group in _GROUPS}
    for name, value in settings.items():
        given[_GROUP_OF[name]][name] = value
    return Rules(**{group: kind(**given[group]) for group, kind in _GROUPS.items()})
