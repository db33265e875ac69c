"""Write a file that TensorBoard reads, whatever state a killed writer left."""

from publishing.sinks.conftest import RUN, value

from sidecar.publishing.sinks.tensorboard import TensorBoard

FILE = f"events.out.tfevents.sidecar.mnist.{RUN}.0"


def test_every_state_in_which_a_killed_writer_leaves_the_file(tmp_path, evaluation, scalars):
    """The evaluation is then delivered again: it is there once, what was there before stays, and so does the rest."""
    sink = TensorBoard(tmp_path / "whole", "mnist")
    sink.write(evaluation(1, {"loss": value(0.5)}))
    first = (tmp_path / "whole" / "test" / FILE).read_bytes()
    sink.write(evaluation(2, {"loss": value(0.25)}))
    whole = (tmp_path / "whole" / "test" / FILE).read_bytes()
    for length in range(len(whole) + 1):
        folder = tmp_path / str(length) / "test"
        folder.mkdir(parents=True)
        (folder / FILE).write_bytes(whole[:length])
        again = TensorBoard(tmp_path / str(length), "mnist")
        if length < len(first):
            again.write(evaluation(1, {"loss": value(0.5)}))
        again.write(evaluation(2, {"loss": value(0.25)}))
        assert (folder / FILE).read_bytes()[:length] == whole[:length]
        assert scalars(folder) == {"loss": [(1, 0.5), (2, 0.25)]}, length
        TensorBoard(tmp_path / str(length), "mnist").write(evaluation(2, {"loss": value(0.25)}))
        assert scalars(folder) == {"loss": [(1, 0.5), (2, 0.25)]}, length


def test_a_flipped_bit_takes_nothing_away(tmp_path, evaluation, scalars):
    """Records after the damaged one stay in their file, and new records are written to another file."""
    sink = TensorBoard(tmp_path, "mnist")
    for step in (1, 2, 3):
        sink.write(evaluation(step, {"loss": value(0.5)}))
    data = bytearray((tmp_path / "test" / FILE).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "test" / FILE).write_bytes(data)
    TensorBoard(tmp_path, "mnist").write(evaluation(4, {"loss": value(0.25)}))
    assert (tmp_path / "test" / FILE).read_bytes() == data
    assert scalars(tmp_path / "test")["loss"][-1] == (4, 0.25)
