"""Models of a folder, and arguments that are wrong; without transformers and the harness."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.errors import TaskError
from sidecar.evaluation.failures import EvaluationError
from sidecar.lm import harness, model
from sidecar.lm.models import tokenizer_for

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("names", "options", "words"),
    [
        ((), {}, r"harness\('arc_easy'\)"),
        ((3,), {}, "3"),
        (("a",), {"batch_size": 0}, "batch_size=0"),
        (("a",), {"device": "cpu"}, "device=….*gen_kwargs"),
        (("a",), {"apply_chat_template": True}, "tokenizer='path"),
        (("a", "folder/a.yaml"), {}, "'a' twice"),
    ],
)
def test_mistakes_are_told_at_once(names, options, words):
    """Before anything is imported."""
    with pytest.raises(TaskError, match=words):
        harness(*names, **options)


def test_a_set_is_named_after_its_task(tmp_path):
    """A file of YAML by its name."""
    sets = harness("arc_easy", "folder/own.yaml", every_nth=1)
    assert list(sets) == ["arc_easy", "own"]
    assert sets["own"].check == "all"
    with pytest.raises(TaskError, match=r"config\.json"):
        model(tmp_path)


def test_importing_it_is_light():
    """A task's file is imported where no framework is, too."""
    code = "import sidecar.lm, sys; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert not {"torch", "transformers", "datasets", "lm_eval", "numpy"} & set(eval(done.stdout))


@pytest.mark.torch
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_code_in_the_folder_of_a_model_is_not_run(tmp_path):
    """A checkpoint is data, also its configuration and its tokenizer."""
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    classes = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own", "AutoTokenizer": ["own.Own", None]}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": classes}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": classes, "tokenizer_class": "Own"}))
    with pytest.raises(ValueError, match="trust_remote_code"):
        model(tmp_path)()
    with pytest.raises(EvaluationError, match="no tokenizer"):
        tokenizer_for(tmp_path, None, "tokenizer=…")
    assert not (tmp_path / "ran").exists()


BUILT = """
import json, pathlib, sys
from lm import tiny
from sidecar.lm import model

tiny.config().save_pretrained(folder := pathlib.Path(sys.argv[1]))
file = folder / "config.json"
file.write_text(json.dumps(json.loads(file.read_text()) | json.loads(sys.argv[2])))
print(model(folder)().config._attn_implementation)
"""
KERNELS = """
class Any:
    def __init__(self, *_, **__): pass
    def __call__(self, decorated): return decorated

def __getattr__(name): return Any

def get_kernel(*names, **_):
    print("asked for", *names)
    raise SystemExit("code of the Hub runs")
"""


@pytest.mark.torch
@pytest.mark.nightly
@pytest.mark.parametrize("named", ["evil/kernel", "flash_attention_2"])
def test_a_configuration_names_no_code_of_the_hub(tmp_path, named):
    """With the package `kernels`, transformers would fetch and load such a kernel; a stand-in says if it is asked."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "kernels-0.18.2.dist-info").mkdir()
    (tmp_path / "kernels-0.18.2.dist-info" / "METADATA").write_text("Name: kernels\nVersion: 0.18.2\n")
    path = os.pathsep.join(map(str, (tmp_path, TESTS, TESTS / "support")))
    command = [sys.executable, "-c", BUILT, tmp_path / "model", json.dumps({"attn_implementation": named})]
    environ = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=600)
    assert (done.returncode, done.stdout) == (0, "sdpa\n"), done.stderr


@pytest.mark.torch
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("lm_eval")  # peft is installed next to it
def test_an_adapter_names_no_module_to_import(tmp_path, monkeypatch):
    """Megatron's option names one, which lies next to the adapter here."""
    import peft
    from lm import tiny

    tiny.build_model().save_pretrained(tmp_path / "base")
    adapter = peft.LoraConfig(r=2, task_type="CAUSAL_LM", target_modules=["q_proj"])
    adapter.save_pretrained(tmp_path / "adapter")
    content = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    named = content | {"megatron_config": {"a": 1}, "megatron_core": "own_module"}
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(named))
    (tmp_path / "own_module.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    built = model(tmp_path / "base", adapter=tmp_path / "adapter")()
    assert built.peft_config["default"].r == 2
