"""Derive from settings what a scan asks for."""

from sidecar.checkpoints.discovery_rules import DiscoveryRules


def test_without_settings_everything_is_looked_for():
    """Require no marker, and scan no sub-folder."""
    rules = DiscoveryRules()
    assert (rules.marker, rules.step_expression) == (None, None)
    assert {"tf_object", "keras", "torch_zip"} <= {each.name for each in rules.looked_for}
    assert rules.glob.accepts("ckpt-5")
    assert not rules.glob.accepts("epoch_1/ckpt-5")


def test_settings_become_what_they_mean():
    """Each setting is compiled into the object that the scan uses, and only once."""
    rules = DiscoveryRules(
        step_pattern=r"step(\d+)", complete_marker="{name}.done", formats=("hdf5",), checkpoint_glob=("*/*",)
    )
    assert rules.step_expression.search("step12")[1] == "12"
    assert rules.marker.checkpoint("m.done") == "m"
    assert [each.name for each in rules.looked_for] == ["hdf5"]
    assert rules.glob.accepts("epoch_1/ckpt-5")
    assert rules.glob is rules.glob
