"""Every fault of a virtual world by its name; what each does is in `faults.py` and `relay_faults.py`."""

from enum import StrEnum


class FaultName(StrEnum):
    """Every fault that a story may name; `for_s` is how long it lasts (0: for ever)."""

    KILL = "kill"
    """SIGKILL of a learner; it returns as a new incarnation."""
    STOP = "stop"
    """SIGSTOP of a learner, then SIGCONT."""
    SLOW = "slow"
    """A learner's steps take four times as long."""
    LEAVE = "leave"
    """A learner takes leave in order; it returns."""
    TWIN = "twin"
    """A second process of the same name starts."""
    POISON = "poison"
    """What a learner has under way holds NaN, or is far too large, too large, or zero."""
    GIVE_UP = "give_up"
    """A learner's side breaks off what it sends."""
    REPEAT = "repeat"
    """An offer arrives a second time much later, perhaps spoilt."""
    CUT_OFF = "cut_off"
    """A learner's link is cut, both ways."""
    CUT_UP = "cut_up"
    """What a learner says is lost; it hears everything."""
    CUT_DOWN = "cut_down"
    """A learner hears nothing; what it says arrives."""
    HALF_OPEN = "half_open"
    """What a learner says is held back and arrives later, all at once; it hears nothing."""
    LOSSY = "lossy"
    """A third of all that a learner says and hears is lost."""
    SLOW_LINK = "slow_link"
    """A learner's link has a tenth of its bandwidth, and ten times its latency."""
    DEAD_STRIPE = "dead_stripe"
    """One of several connections on which a learner's bodies go up takes chunks and delivers none."""
    LOST_CALL = "lost_call"
    """The next call does not reach a learner."""
    CUT_REGION = "cut_region"
    """The uplink of a region is cut; of one with a relay that is its far link, and its own links work."""
    HALF_GONE = "half_gone"
    """Half of the learners are killed at once, and the uplink of their region with them."""
    CRASH = "crash"
    """SIGKILL of the syncer; it starts again from its disk."""
    UNREACHABLE = "unreachable"
    """The syncer crashes, and when it starts again a part of the fleet cannot be reached."""
    SYNCER_STOP = "syncer_stop"
    """SIGSTOP of the syncer, then SIGCONT."""
    DISK_FULL = "disk_full"
    """The syncer's disk is full."""
    TAKE_OVER = "take_over"
    """A successor starts beside the living syncer; the fleet follows one by one."""
    RELAY_KILL = "relay_kill"
    """SIGKILL of a relay; it returns and knows nothing."""
    RELAY_STOP = "relay_stop"
    """SIGSTOP of a relay, then SIGCONT."""
    FAR_HALF_OPEN = "far_half_open"
    """What goes up by a far link is held back and arrives later, all at once; nothing comes down."""
    FAR_LOSSY = "far_lossy"
    """A third of all that goes by a far link is lost."""
    FAR_SLOW = "far_slow"
    """A far link has a tenth of its bandwidth, and ten times its latency."""


OF_SYNCER = frozenset({
    FaultName.CRASH, FaultName.UNREACHABLE, FaultName.SYNCER_STOP, FaultName.DISK_FULL, FaultName.TAKE_OVER,
    FaultName.HALF_GONE,
})  # fmt: skip
"""Faults that name no learner."""
OF_RELAYS = frozenset({
    FaultName.RELAY_KILL, FaultName.RELAY_STOP, FaultName.FAR_HALF_OPEN, FaultName.FAR_LOSSY, FaultName.FAR_SLOW,
})  # fmt: skip
"""Faults that name a relay."""
