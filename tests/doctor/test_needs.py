"""What a role needs is what a plan says of it."""

import pytest

from tests.doctor.parts import need
from zdiloco.doctor.needs import Role, need_of, together
from zdiloco.node.params import NetParams
from zdiloco.plan.answer import Asked
from zdiloco.plan.model import of_parameters
from zdiloco.plan.params import Fleet, Region, Settings


def test_a_learner_sends_its_model_once_a_period() -> None:
    """10 million values in bf16, both ways, in 24 steps and one more until its cut."""
    found = need(parameters=1e7)
    assert found.up_bytes_s == pytest.approx(2e7 / 25, rel=0.02)
    assert found.down_bytes_s == pytest.approx(2e7 / 25, rel=0.02)
    assert found.period == 24
    assert found.memory_bytes > 16e7
    assert found.disk.bytes_s == pytest.approx(found.disk.nbytes / 60)


def test_a_syncer_has_to_do_with_all_of_them() -> None:
    one, two = need(Role.SYNC, learners=1), need(Role.SYNC, learners=2)
    assert two.down_bytes_s == pytest.approx(2 * one.down_bytes_s)
    assert two.descriptors == one.descriptors + 4
    assert one.disk.key == "sync.checkpoint_every_s"


def test_a_relay_takes_what_is_published_once() -> None:
    relay, learner = need(Role.RELAY, learners=4), need(Role.LEARNER, learners=4)
    assert relay.up_bytes_s == pytest.approx(4 * learner.up_bytes_s, rel=0.01)
    assert relay.down_bytes_s == pytest.approx(learner.down_bytes_s, rel=0.05)
    assert relay.disk.key == relay.codec.encoded == ""


def test_what_goes_up_is_shared_by_stripes_and_lanes_and_what_is_published_is_not() -> None:
    assert [(each.lanes, each.ups, each.downs) for each in map(need, Role)] == [(1, 1, 1), (2, 2, 2), (2, 2, 1)]
    region = Region(name="here", learners=3)
    asked = Asked(
        fleet=Fleet(regions=(region,)), model=of_parameters(1e6, 24), settings=Settings(net=NetParams(stripes=4))
    )
    found = [need_of(role, asked) for role in Role]
    assert [(each.lanes, each.ups, each.downs) for each in found] == [(1, 4, 1), (3, 3, 12), (3, 12, 1)]


def test_processes_share_link_memory_and_disk_but_no_descriptors() -> None:
    one = need()
    three = together(one, 3)
    assert (three.up_bytes_s, three.memory_bytes) == (3 * one.up_bytes_s, 3 * one.memory_bytes)
    assert (three.disk.bytes_s, three.descriptors) == (3 * one.disk.bytes_s, one.descriptors)


def test_a_model_on_a_device_takes_no_memory_here() -> None:
    asked = Asked(fleet=Fleet(regions=(Region(name="a"),)), model=of_parameters(1e9, 24), settings=Settings())
    here, there = (need_of(Role.LEARNER, asked, on_cpu=on_cpu).memory_bytes for on_cpu in (True, False))
    assert here - there == pytest.approx(16e9)
