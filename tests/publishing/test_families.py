"""Name and describe the families of metrics by Prometheus' conventions."""

from sidecar.publishing.families import FAMILIES


def test_families_follow_the_conventions():
    """Every name has the one prefix, every help is a sentence, and no label could grow without bound."""
    for name, (labels, explanation) in FAMILIES.items():
        assert name.startswith("sidecar_")
        assert explanation.endswith(".")
        assert not {"step", "path", *([] if name.endswith("_info") else ["checkpoint"])} & set(labels)
