"""A tiny language model with a tokenizer, and tasks of the harness as YAML and JSON lines: nothing is fetched."""

import json
import random
import re

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "while",
    "dogs",
    "ran",
    "by",
    "and",
    "birds",
    "sang",
    "of",
    "rain",
    "in",
    "spring",
    "with",
    "some",
    "joy",
    "or",
    "none",
    "at",
    "all",
]
DOCUMENTS = 23
PARTS = {
    "process_results": "match.part",
    "metric_list": [{"metric": "part", "aggregation": "mean", "higher_is_better": True}],
}
OF_DOCUMENTS = """
def match(doc, results):
    return {'match': float(len(results[0]) % 2)}

def part(doc, results):  # the sum of 23 documents has other bits in the orders of 2 to 4 ranks
    return {'part': 1 / (int(doc['question'].split()[0]) + 13)}
"""
SEVERAL = {
    "repeats": 4,
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 6, "do_sample": True, "temperature": 1.0},
}
OWN = {
    "process_results": "match.match",
    "metric_list": [{"metric": "match", "aggregation": "mean", "higher_is_better": True}],
}
VOTE = [
    {"name": "vote", "filter": [{"function": "majority_vote"}, {"function": "take_first"}]},
    {"name": "first", "filter": [{"function": "take_first"}]},
]


def tokenizer(folder):
    """Save a byte-level tokenizer of 300 tokens into a folder, and return it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<eos>"], initial_alphabet=alphabet)
    raw.train_from_iterator([" ".join(WORDS)] * 4, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>", pad_token="<eos>")
    made.chat_template = "{% for each in messages %}<{{ each.role }}>{{ each.content }}{% endfor %}<assistant>"
    made.save_pretrained(folder)
    return made


def config():
    """A Llama of two layers."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )


def build_model():
    """The model, with values that differ from layer to layer."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config())
    with torch.no_grad():
        for values in model.parameters():
            values.mul_(2)
    return model


def sentence(draw, words):
    return " ".join(draw.choice(WORDS) for _ in range(words))


def write_tasks(folder, documents=DOCUMENTS):
    """Write tasks of all output types, and return their names."""
    folder.mkdir()
    draw = random.Random(7)
    rows = []
    for number in range(documents):
        choices = [sentence(draw, draw.randint(1, 6)) for _ in range(3)]
        rows.append(
            {
                "question": f"{number} {sentence(draw, draw.randint(2, 20))}",
                "choices": choices,
                "label": draw.randrange(3),
                "kind": draw.randrange(2),
                "answer": choices[0],
                "text": sentence(draw, draw.randint(3, 90)),
            }
        )
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "metadata": {"version": 1.0},
    }
    mean = {"aggregation": "mean", "higher_is_better": True}
    choice = common | {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}:",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "label",
        "metric_list": [{"metric": "acc"} | mean, {"metric": "acc_norm"} | mean],
    }
    generate = common | {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}\n",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 5, "do_sample": False},
        "metric_list": [{"metric": "exact_match"} | mean],
    }
    tasks = {
        "choice": choice,
        "shots": choice | {"num_fewshot": 3},
        "matthews": choice
        | {
            "doc_to_choice": "{{choices[:2]}}",
            "doc_to_target": "kind",
            "metric_list": [{"metric": "mcc", "aggregation": "matthews_corrcoef", "higher_is_better": True}],
        },
        "continued": common
        | {
            "output_type": "loglikelihood",
            "doc_to_text": "{{question}}",
            "doc_to_target": " {{answer}}",
            "metric_list": [
                {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
                {"metric": "acc"} | mean,
            ],
        },
        "rolling": common
        | {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")],
        },
        "generated": generate,
        "measured": generate | OWN,
        "summed": generate | PARTS,
        "voted": generate | OWN | SEVERAL | {"filter_list": VOTE},
    }
    for name, task in tasks.items():
        text = json.dumps({"task": name} | task)  # JSON is YAML
        (folder / f"{name}.yaml").write_text(re.sub(r'"(match\.\w+)"', r"!function \1", text))
    (folder / "match.py").write_text(OF_DOCUMENTS)
    members = [choice | {"task": f"member_{letter}"} for letter in "ab"]
    for member in members:
        (folder / f"{member['task']}.yaml").write_text(json.dumps(member))
    group = {
        "group": "together",
        "task": [member["task"] for member in members],
        "aggregate_metric_list": [{"metric": "acc", "aggregation": "mean", "weight_by_size": True}],
        "metadata": {"version": 1.0},
    }
    (folder / "together.yaml").write_text(json.dumps(group))
    return [*tasks, "together"]
