"""A JVM that answers no call: it is killed, and nobody waits for it before."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sorters.service import shared_spark
from sorters.service.shared_spark import SharedSpark
from sorters.spark import session
from sorters.spark.jvm_pulse import JvmPulse


class Jvm:
    """Stands for a session and the JVM that it calls."""

    def __init__(self) -> None:
        self.sparkContext: Any = SimpleNamespace(uiWebUrl="", _jsc=self)  # as py4j names them
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.asked, self.killed = threading.Event(), threading.Event()

    def sc(self) -> "Jvm":
        return self

    def isStopped(self) -> bool:  # noqa: N802 # Spark's name
        self.asked.set()
        assert self.goes_on.wait(60)
        if self.killed.is_set():
            raise ConnectionResetError("nobody is there")
        return False

    def is_gone(self) -> bool:
        """Ask it as a session does."""
        try:
            return self.isStopped()
        except ConnectionResetError:
            return True

    def kill(self) -> None:
        self.killed.set()
        self.goes_on.set()


@pytest.fixture
def jvm() -> Iterator[Jvm]:
    jvm = Jvm()
    yield jvm
    jvm.kill()


def test_jvm_that_does_not_answer_is_killed_and_said(jvm: Jvm, caplog: pytest.LogCaptureFixture) -> None:
    jvm.goes_on.clear()
    pulse = JvmPulse(jvm.is_gone, jvm.kill, look_s=0.01, looks_max=5)
    pulse.start()
    assert jvm.killed.wait(10)
    assert "does not answer" in caplog.text
    pulse.close()


def test_jvm_that_answers_lives(jvm: Jvm) -> None:
    looks = threading.Semaphore(0)

    def is_gone() -> bool:
        looks.release()
        return jvm.is_gone()

    pulse = JvmPulse(is_gone, jvm.kill, look_s=0.01, looks_max=200)
    pulse.start()
    for _ in range(20):
        assert looks.acquire(timeout=10)
    assert not jvm.killed.is_set()
    pulse.close()


def test_session_on_demand_has_a_pulse(jvm: Jvm, monkeypatch: pytest.MonkeyPatch) -> None:
    def quick(is_gone: Any, kill: Any) -> JvmPulse:
        return JvmPulse(is_gone, kill, look_s=0.01, looks_max=5)

    monkeypatch.setattr(session, "JvmPulse", quick)
    monkeypatch.setattr(session, "kill_jvm", jvm.kill)
    spark: Any = session.SparkOnDemand(lambda: jvm)
    spark.get()
    assert jvm.asked.wait(10)
    jvm.goes_on.clear()
    assert jvm.killed.wait(10)
    assert spark.is_gone()


def test_loop_of_a_service_does_not_wait_for_a_jvm_that_stands(jvm: Jvm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "JvmPulse", lambda is_gone, kill: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(shared_spark, "run_first_job", lambda spark: None)
    spark = SharedSpark(lambda: jvm)
    spark.get()
    jvm.goes_on.clear()
    loop = threading.Thread(target=spark.warm, daemon=True)
    loop.start()
    loop.join(10)
    assert not loop.is_alive()
    jvm.kill()
    assert spark._warming is not None
    spark._warming.join(10)
    assert not spark._warming.is_alive(), "what it starts then must not run in another test"
