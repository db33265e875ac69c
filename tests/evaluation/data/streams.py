"""Eval sets of TensorFlow, read by any number of ranks."""


def contents(batches):
    batches.read(lambda: None)
    return [batch[1].numpy().tolist() for _, _, batch in batches.own()]
