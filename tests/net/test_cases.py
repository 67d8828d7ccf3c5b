"""What users of other trainers lived through, over real sockets and a bad link (docs/cases.md)."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tests.net.test_losses import BULK, Far, held_up
from tests.net.tunnel import Tunnel
from tests.node.conftest import Run, Trainer
from tests.node.test_loopback import assert_balanced, node_of
from zdiloco.chaos.proxy import Proxy
from zdiloco.core.membership import MemberState
from zdiloco.errors import LinkError
from zdiloco.node.hooks import Hooks
from zdiloco.node.learner import LearnerNode

pytestmark = [pytest.mark.net, pytest.mark.slow]
MakeRun = Callable[..., Run]
MakeLink = Callable[[int], tuple[Proxy, int]]


def behind(run: Run, port: int, name: str, **options: Any) -> Trainer:
    """A learner that dials another port than the syncer's own."""
    config = replace(run.config, net=replace(run.config.net, port=port))
    trainer = Trainer(config, name, seed=len(run.trainers), **options)
    run.trainers.append(trainer)
    return trainer


def test_who_takes_three_times_the_timeout_to_load_is_let_in(run_of: MakeRun, link_to: MakeLink) -> None:
    """A-5: its values come so slowly that it would be gone three times over; it lives meanwhile, and is admitted."""
    run = run_of(sync={"suspect_after_s": 0.5, "gone_after_s": 1.0}, net={"stall_s": 2.0})
    syncer = run.start_syncer()
    near = run.join("near")
    run.until(lambda: near.steps > 5, "steps")
    proxy, port = link_to(run.config.net.port)
    proxy.slow(BULK, 500)
    began = time.monotonic()
    late = behind(run, port, "late")
    run.until(lambda: "late" in syncer.machine.fleet.members, "its hello")
    welcome = syncer.machine.fleet.members["late"].order
    run.until(lambda: late.joined.is_set(), "its values")
    assert time.monotonic() - began > 3 * run.config.sync.gone_after_s
    proxy.slow(BULK, 1e9)
    run.until(lambda: any(key.name == "late" for key in syncer.body.states[0].map_), "its merged work")
    assert syncer.machine.fleet.members["late"].order == welcome  # welcomed once


@pytest.mark.parametrize("how", ["refused", "reset", "unreachable"])
def test_a_syncer_that_is_away_is_trained_without_and_found_again(run_of: MakeRun, link_to: MakeLink, how: str) -> None:
    """A-8: whichever way the other side is away, steps go on, and the learner comes back by itself."""
    there = Far(run_of(), link_to)
    machine = node_of(there.far).machine
    if how == "refused":
        there.run.stop_syncer()
    elif how == "reset":
        there.proxy.cut(refuse=True)
    else:
        there.proxy.stop()
    there.run.until(lambda: machine.phase == "adrift", "word of its absence")
    steps = there.far.steps
    there.run.until(lambda: there.far.steps > steps + 50, "steps without it")
    if how == "refused":
        there.syncer = there.run.start_syncer()
    there.proxy.heal()
    there.run.until(lambda: machine.phase == "training", "the learner is back")
    there.merged_again("far")
    there.end()


def test_a_name_that_nobody_knows_is_waited_for(run_of: MakeRun, caplog: pytest.LogCaptureFixture) -> None:
    """A-8: net.connect cannot be resolved (now): the learner waits, says so once, and can be told to stop."""
    run = run_of()
    config = replace(run.config, net=replace(run.config.net, connect="nobody.invalid"))
    began = time.monotonic()
    model = nn.Linear(2, 2)
    with pytest.raises(LinkError, match="waiting was ended"):
        LearnerNode(
            model, torch.optim.SGD(model.parameters(), lr=0.1), config, name="a",
            hooks=Hooks(abandon=lambda: time.monotonic() - began > 2.5),
        )  # fmt: skip
    assert caplog.text.count("a waits for the syncer at nobody.invalid") == 1


def test_half_a_push_of_the_dead_frees_its_memory(run_of: MakeRun, link_to: MakeLink) -> None:
    """A-3: a learner dies with half a contribution at the syncer: its bytes are given back, the other trains on."""
    there = Far(run_of(), link_to)
    key = node_of(there.far).key

    def under_way() -> bool:
        return any(peer == key for peer, _ in list(there.syncer.transfers.inbox._entries))

    there.proxy.slow(BULK, 100)
    there.run.until(under_way, "half a push")
    steps, rounds = there.near.steps, there.syncer.machine.rounds
    there.proxy.cut(refuse=True)
    there.run.until(lambda: there.state("far") is MemberState.GONE, "its end is known")
    there.run.until(lambda: not under_way(), "its memory is free")
    there.run.until(lambda: there.syncer.machine.rounds > rounds + 4, "rounds of the other")
    assert there.near.steps > steps
    there.proxy.slow(BULK, 1e9)
    there.proxy.heal()
    there.merged_again("far")
    there.end()


def test_many_push_at_once_also_while_a_checkpoint_is_written(run_of: MakeRun) -> None:
    """A-15: all of them in every round, with a checkpoint after each: nobody waits for anybody for ever."""
    count = 12  # 64 of them in virtual time: one interpreter cannot turn so many fast enough
    run = run_of(sync={"min_quorum": count, "checkpoint_every_s": 0.001, "suspect_after_s": 5.0, "gone_after_s": 20.0})
    syncer = run.start_syncer()
    trainers = [run.join(f"l{index:02}", pace_s=0.05) for index in range(count)]
    run.until(lambda: all(trainer.joined.is_set() for trainer in trainers), "all have joined")
    rounds = syncer.machine.rounds
    run.until(lambda: syncer.machine.rounds >= rounds + 6, "six rounds of all")
    assert syncer.machine.contributions >= 6 * count
    assert all(desk.stable.version > 0 for desk in syncer.machine.desk)
    for trainer in trainers:
        trainer.stopping.set()
    for trainer in trainers:
        trainer.stop()
        assert trainer.error is None
    run.stop_syncer()
    assert_balanced(run.config.run.path, syncer)


def test_a_learner_that_stands_still_for_two_seconds_is_not_dead(run_of: MakeRun, link_to: MakeLink) -> None:
    """A-23: all its words are late, as under full load or in a long collection: it is not welcomed anew."""
    there = Far(run_of(sync={"suspect_after_s": 1.0, "gone_after_s": 6.0}), link_to)
    order = there.syncer.machine.fleet.members["far"].order  # which of the two came first is nobody's business
    with held_up(node_of(there.far)):
        there.run.until(lambda: there.state("far") is MemberState.SUSPECT, "it is missed")
        assert not there.far.stopping.wait(1.5)
        assert there.state("far") is MemberState.SUSPECT
    there.run.until(lambda: there.state("far") is MemberState.LIVE, "it is back")
    there.merged_again("far")
    assert there.syncer.machine.fleet.members["far"].order == order
    there.end()


def test_a_restart_of_the_publisher_loses_no_fragment(run_of: MakeRun, link_to: MakeLink) -> None:
    """E-79: many fragments, and the syncer starts again: every one is published and adopted, with one subscription."""
    count = 64
    run = run_of(sync={"num_fragments": count, "sync_period": 8, "recover_wait_s": 2.5, "checkpoint_every_s": 1.0})
    first = run.start_syncer()

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 8), *(nn.Linear(8, 8, bias=False) for _ in range(count - 2)))

    trainer = run.join("a", model=model(), pace_s=0.02)
    run.until(lambda: first.machine.rounds > count, "a round of nearly every fragment")
    run.stop_syncer()
    second = run.start_syncer()
    run.until(lambda: second.machine.phase == "running", "the successor")
    epoch = second.machine.epoch

    def all_of_it() -> bool:
        return all(duty.progress.seen.epoch == epoch for duty in node_of(trainer).machine.duties)

    run.until(all_of_it, "every fragment of the new epoch")
    run.until(lambda: second.machine.rounds > 20, "rounds")


def test_only_learners_dial(run_of: MakeRun, link_to: MakeLink) -> None:
    """E-83: behind a link that lets connections through one way only, four ports in a row, all works."""
    run = run_of(run={"target_tokens": 600})
    proxy, port = link_to(run.config.net.port)  # it dials the syncer and nothing dials back
    syncer = run.start_syncer()
    trainers = [behind(run, port, name) for name in ("a", "b")]
    run.until(lambda: all(t.node is not None and t.node.finished for t in trainers), "the target")
    assert all(node_of(trainer).reached_target for trainer in trainers)
    assert all(proxy.connections(road) for road in range(4))
    run.until(lambda: syncer.machine.phase == "stopped", "its end")


def test_one_open_port_is_enough_with_a_tunnel(run_of: MakeRun, free_ports: Callable[[int], int]) -> None:
    """E-83: where a single port may be dialled, a tunnel (as of ssh -L) carries all four roads through it."""
    run = run_of(run={"target_tokens": 600})
    base, single = free_ports(4), free_ports(1)
    tunnel = Tunnel(base, single, run.config.net.port)
    try:
        syncer = run.start_syncer()
        trainers = [behind(run, base, name) for name in ("a", "b")]
        run.until(lambda: all(t.node is not None and t.node.finished for t in trainers), "the target")
        assert all(node_of(trainer).reached_target for trainer in trainers)
        assert tunnel.connections == 1
        run.until(lambda: syncer.machine.phase == "stopped", "its end")
    finally:
        tunnel.close()
