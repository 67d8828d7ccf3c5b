"""A run with keys under siege: a syncer and two honest learners as processes, and one attacker after the other.

Rule: after each attack the three live, rounds went on, nothing of the attacker is merged, nothing was said of a
traceback, and the syncer's resident memory has grown by less than the attack may cost. Every attacker has a key, and so
a name, of its own: what one has done is not held against the next.
"""

import itertools
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import zmq

from tests.accept.stage import WATCHER, Child, Stage, assert_balanced
from tests.hostile.enemy import PORTS, Enemy
from tests.hostile.scene import OPEN
from tests.hostile.test_processes import Figures
from zdiloco.node.keys import Pair, load_pair, load_public
from zdiloco.node.query import Query
from zdiloco.node.sockets import Road
from zdiloco.tensor.layout import Layout
from zdiloco.units import MemberKey

MB = 2**20
HONEST = ("a", "b", "c")
ROGUES = tuple(f"mallory-{number}" for number in range(40))
EXPIRED, ONLY_WATCHES = "gone-by", "spectator"
SPARE_MB = 48
"""What an attack may cost beside what its own row grants: queues of sockets, and what the allocator keeps of them."""


def allowed_of(stage: Stage) -> None:
    """Keys for everybody, and the list; one of the keys was good until 2020, one is for watching only."""
    folder = stage.made_keys(*HONEST, *ROGUES, EXPIRED, ONLY_WATCHES)
    place = folder / "allowed.toml"
    said = place.read_text()
    for name, more in ((EXPIRED, "expires = 2020-02-29"), (ONLY_WATCHES, 'rights = ["watch"]')):
        said = re.sub(rf"^(\[{name}\]\n.*\n)", rf"\1{more}\n", said, flags=re.MULTILINE)
    place.write_text(said)


class Siege:
    """The run; `context` makes the attackers' sockets."""

    def __init__(self, stage: Stage, context: Any) -> None:
        self.stage, self.context = stage, context
        allowed_of(stage)
        self.keys = stage.folder / "keys"
        stage.write(
            sync={"budget_bytes": 16 * MB, "sync_period": 4, "recover_wait_s": 4.0},
            net={"keys": str(self.keys), **OPEN},  # what holds though all that is sent is read
        )
        self.incarnations = itertools.count(1000)
        self._rogues = iter(ROGUES)
        self.enemies: list[Enemy] = []
        self.may_be_merged: set[str] = set()
        self.figures: Figures
        self.syncer: Child
        self.learners: list[Child] = []

    def ready(self) -> None:
        """Rounds are merged; the honest learners are started where they were not yet."""
        if not self.learners:
            self.join()

    def start_syncer(self) -> None:
        """Start `zdiloco sync` as a new program."""
        self.syncer = self.stage.cold_sync()
        self.figures = Figures(self.syncer)

    def join(self) -> None:
        """Start the two honest learners; returns when rounds are merged."""
        self.learners = [self.stage.script(name, seed=at, pace_s=0.01) for at, name in enumerate(HONEST[:2])]
        self.goes_on(8)
        layout = self.ask(layout=True)
        self.layout = Layout.from_obj(layout)

    # ---- what is seen

    def ask(self, *, layout: bool = False) -> dict[str, Any]:
        """The status, or the layout."""
        with Query(self.stage.config.net, name=WATCHER) as query:
            return query.ask(60.0, layout=layout)

    @property
    def living(self) -> tuple[Child, ...]:
        return (self.syncer, *self.learners)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for a condition, while everybody lives."""
        return self.stage.until(condition, what, *self.living)

    def goes_on(self, rounds: int = 4) -> None:
        """So many rounds more are merged, while everybody lives."""
        merged = self.stage.rounds()
        self.until(lambda: self.stage.rounds() >= merged + rounds, f"{rounds} rounds more")

    def says(self, text: str) -> None:
        """The syncer's log says this, or soon does."""
        self.until(lambda: text in self.syncer.errors, f"the log says {text!r}")

    def strangers(self, why: str = "key") -> int:
        """How often somebody was turned away for this."""
        return int(self.ask()["node"]["strangers"].get(why, 0))

    def incarnation(self, name: str) -> int:
        """That of the honest process of this name."""
        return int(self.stage.member(name)["incarnation"], 16)

    def heard(self, key: MemberKey) -> dict[str, Any]:
        """What the syncer has counted of a peer."""
        peers = self.ask()["node"]["peers"]
        return dict(
            peers.get(f"{key.name}:{key.incarnation:016x}", {"frames_down": 0, "bytes_down": 0, "malformed": {}})
        )

    def settled(self, name: str) -> tuple[str, float]:
        """State and merged tokens of one that has left, when what was held of it is merged."""
        before, now = -1.0, self.stage.member(name)
        while now.get("merged_tokens") != before:
            before = now.get("merged_tokens", -2.0)
            self.goes_on(8)
            now = self.stage.member(name)
        return now["state"], before

    # ---- who attacks

    def pair(self, name: str) -> Pair:
        return load_pair(self.keys, name)

    def curve(self, pair: Pair) -> dict[int, bytes]:
        """What encrypts the sockets of whoever has this pair and knows the syncer's public key."""
        server = load_public(self.keys, "syncer")
        return {zmq.CURVE_PUBLICKEY: pair.public, zmq.CURVE_SECRETKEY: pair.secret, zmq.CURVE_SERVERKEY: server}

    def rogue(self) -> MemberKey:
        """A name whose key is in the list, used by nobody before."""
        return MemberKey(next(self._rogues), next(self.incarnations))

    def enemy(self, identity: MemberKey | bytes, key_of: str | Pair | None) -> Enemy:
        """One with these keys (by name, or as they are; None: none) who hangs up when the attack is over."""
        pair = self.pair(key_of) if isinstance(key_of, str) else key_of
        self.enemies.append(Enemy(self.context, self.stage.port, identity, self.curve(pair) if pair else {}))
        return self.enemies[-1]

    @contextmanager
    def listener(self, key: MemberKey, road: Road) -> Iterator[Any]:
        """A socket at one of the broadcasts that has subscribed to nothing yet, with the key of this name."""
        made = self.context.socket(zmq.SUB)
        try:
            made.setsockopt(zmq.LINGER, 0)
            made.setsockopt(zmq.SNDHWM, 0)  # else some subscriptions would never leave
            for option, value in self.curve(self.pair(key.name)).items():
                made.setsockopt(option, value)
            made.connect(f"tcp://127.0.0.1:{self.stage.port + PORTS[road]}")
            yield made
        finally:
            made.close(0)

    @contextmanager
    def attacked(self, row: str, most_mb: float = 0.0) -> Iterator[None]:
        """An attack, and what must hold after it; `most_mb`: what it may cost of memory beside SPARE_MB."""
        self.ready()
        before, rounds = self.figures.resident_bytes, self.stage.rounds()
        try:
            yield
            self.goes_on()
        finally:
            for enemy in self.enemies:
                enemy.close()
            self.enemies.clear()
        grown = (self.figures.resident_bytes - before) / MB
        print(f"{row}: {grown:+.1f} MB, {self.stage.rounds() - rounds} rounds more")
        assert grown <= most_mb + SPARE_MB
        self.nothing_merged()

    def nothing_merged(self) -> None:
        """No token of anybody but honest learners is merged, by the syncer's own count."""
        merged = {each["name"] for each in self.ask()["learners"] if each["merged_tokens"]}
        assert merged <= {*HONEST, *self.may_be_merged}
        assert "Traceback" not in self.syncer.errors

    def end(self) -> None:
        """Everybody leaves in order; the books balance, by ours and by `zdiloco ledger verify`; nobody else is in the
        map of the last checkpoint."""
        self.ready()
        self.goes_on()
        self.nothing_merged()
        for child in (*self.learners, self.syncer):
            child.send(signal.SIGTERM)
            assert child.wait() == 0, child.errors
            assert "Traceback" not in child.errors
        assert {row.name for part in self.stage.cut().fragments for row in part.map_} <= {*HONEST, *self.may_be_merged}
        assert_balanced(self.stage.fates())
        verify = self.stage.command("ledger", "verify", str(self.stage.run_dir))
        code, said = verify.wait(), verify.output + verify.errors
        wrong = set(re.findall(r"^(\S+):[0-9a-f]{16} fragment \d+: trained minus", said, re.MULTILINE))
        assert wrong <= self.may_be_merged, said  # of those that sent something there is no file
        assert code == bool(wrong), said
