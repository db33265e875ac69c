"""End all processes of a demo with it."""

import pytest
from commands.demo.running import wait_until


@pytest.mark.nightly
@pytest.mark.tensorflow
def test_ctrl_c_leaves_no_process_behind(start):
    """In the middle of training, with worker processes at work: exit code 130, and everything is gone."""
    demo = start()
    wait_until(lambda: demo.children("evaluation/__main__.py"))
    wait_until(lambda: list((demo.folder / "digits").glob("*.index")))
    demo.interrupt()
    assert demo.wait() == 130, demo.output
    wait_until(lambda: not demo.alive(), 10)  # the guards of worker processes follow the daemons
    assert "Traceback" not in demo.output


@pytest.mark.nightly
@pytest.mark.tensorflow
def test_killed_demo_leaves_no_process_behind(start):
    """SIGKILL cannot be handled: the kernel ends the children, and theirs."""
    demo = start()
    wait_until(lambda: demo.children("evaluation/__main__.py"))
    demo.process.kill()
    demo.wait()
    wait_until(lambda: not demo.alive(), 10)
