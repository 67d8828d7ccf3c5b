"""One message of every kind, and its bytes, which are fixed within one protocol version."""

from zdiloco.core import messages as m
from zdiloco.core.messages import Body
from zdiloco.units import Epoch, Stamp
from zdiloco.wire.encoding import WireMessage
from zdiloco.wire.invitations import Join, Joined
from zdiloco.wire.transfer import Chunk, Credit, Gone

BODY = Body(transfer="c/3/17", nbytes=2_500_000, chunk_bytes=2**20, digest=2**64 - 2)
EPOCH = Epoch(2, 0xFEDCBA9876543210)
STAMP = Stamp(EPOCH, 41)

EXAMPLES: dict[str, WireMessage] = {
    "hello": m.Hello(
        name="us-east-0", incarnation=2**64 - 1, run_id="r1", layout_digest="ab12", epoch=EPOCH, stamps=(STAMP,),
        region="us-east",
    ),
    "report": m.Report(step=100, trained_tokens=409_600, unmerged_tokens=8192.5, dropped_tokens=0.0),
    "heartbeat": m.Heartbeat(epoch=EPOCH),
    "contribution": m.Contribution(
        fragment=3, seq=17, after=16, stamp=STAMP, steps=24, tokens=98_304, cut_step=400, version=42, codec="bf16",
        body=BODY,
    ),
    "decline": m.Decline(fragment=3, version=42, reason="uplink busy", eta_s=1.5),
    "pull": m.Pull(fragment=3),
    "layout": m.LayoutOffer(digest="ab12", body=BODY),
    "initial": m.InitialOffer(fragment=3, body=BODY),
    "handback": m.Handback(fragment=3, stamp=STAMP, codec="bf16", value_bytes=2_000_000, body=BODY),
    "goodbye": m.Goodbye(reason="finished", trained_tokens=10**6, left_tokens=12.25, dropped_tokens=0.0),
    "query": m.StatusQuery(),
    "welcome": m.Welcome(
        epoch=EPOCH, run_id="r1", order=5, versions=(41, -1, 300), progress=0.25
    ),
    "unwelcome": m.Unwelcome(reason="layout", text="tensor a differs", fatal=True),
    "donate": m.Donate(),
    "want": m.HandbackRequest(fragment=3),
    "ack": m.Ack(fragment=3, held=17, merged=16),
    "refused": m.Refused(fragment=3, seq=17, reason="epoch", text="of an older epoch"),
    "call": m.Call(epoch=EPOCH, fragment=3, version=42),
    "update": m.Update(
        fragment=3, stamp=STAMP, full=False, codec="4bit", value_bytes=2_000_000, body=BODY, value_digest=2**64 - 5,
        base=STAMP._replace(version=STAMP.version - 1),
    ),
    "beat": m.Beat(
        epoch=EPOCH, open_rounds=((3, 42), (4, 41)), versions=(41, 40), stable=(40, -1), progress=0.5
    ),
    "farewell": m.Farewell(epoch=EPOCH, finished=True, reason="target reached", versions=(7, 8)),
    "status": m.Status(body=BODY),
    "borrow": m.Borrow(fragment=3, kind="AdamW/0f3a", stamp=STAMP),
    "lend": m.Lend(fragment=3, number=7, kind="AdamW/0f3a"),
    "loan": m.Loan(fragment=3, number=7, kind="AdamW/0f3a", stamp=STAMP, codec="bf16", body=BODY),
    "loanover": m.LoanOver(fragment=3, number=7, reason="taken"),
    "receipt": m.Receipt(),
    "bundle": m.Bundle(
        fragment=3, number=5, method="rda", codec="fp32", body=BODY,
        members=(
            m.Bundled("us-0", 2**64 - 1, 17, 16, 24, 98_304, 0.5, 4.0e8),
            m.Bundled("us-1", 7, 2, 0, 24, 98_304, 0.25, 4.0e8),
        ),
    ),
    "unbundled": m.Unbundled(fragment=3, number=5, reason="norm", text="us-0: too large"),
    "credit": Credit(transfer="c/3/17", upto=2**23, received=2**20, missing=((1, 2), (5, 1))),
    "chunk": Chunk(transfer="c/3/17", index=2, checksum=2**64 - 3),
    "gone": Gone(transfer="c/3/17", by_sender=True, reason="dropped"),
    "join": Join(key="Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"),
    "joined": Joined(run_id="r1", settings=(("sync.sync_period", "24"), ("run.name", '"run"'))),
}

GOLDEN = {
    "hello": (
        "8ca17606a174a568656c6c6fa46e616d65a975732d656173742d30ab696e6361726e6174696f6ecfffffffffffffffffa872"
        "756e5f6e616d65a0a672756e5f6964a27231ad6c61796f75745f646967657374a461623132a565706f63689202cffedcba98"
        "76543210a67374616d707391929202cffedcba987654321029a87761746368696e67c2a6726567696f6ea775732d65617374"
        "a570726f6f66a0"
    ),
    "report": (
        "86a17606a174a67265706f7274a47374657064ae747261696e65645f746f6b656e73ce00064000af756e6d65726765645f74"
        "6f6b656e73cb40c0004000000000ae64726f707065645f746f6b656e73cb0000000000000000"
    ),
    "heartbeat": (
        "86a17606a174a9686561727462656174a565706f63689202cffedcba9876543210a96c697374656e696e67c3a9636f646563"
        "5f776879a0a570726f6f66a0"
    ),
    "contribution": (
        "8ca17606a174ac636f6e747269627574696f6ea8667261676d656e7403a373657111a5616674657210a57374616d70929202"
        "cffedcba987654321029a5737465707318a6746f6b656e73ce00018000a86375745f73746570cd0190a776657273696f6e2a"
        "a5636f646563a462663136a4626f647984a87472616e73666572a6632f332f3137a66e6279746573ce002625a0ab6368756e"
        "6b5f6279746573ce00100000a6646967657374cffffffffffffffffe"
    ),
    "decline": (
        "86a17606a174a76465636c696e65a8667261676d656e7403a776657273696f6e2aa6726561736f6eab75706c696e6b206275"
        "7379a56574615f73cb3ff8000000000000"
    ),
    "pull": "83a17606a174a470756c6ca8667261676d656e7403",
    "layout": (
        "84a17606a174a66c61796f7574a6646967657374a461623132a4626f647984a87472616e73666572a6632f332f3137a66e62"
        "79746573ce002625a0ab6368756e6b5f6279746573ce00100000a6646967657374cffffffffffffffffe"
    ),
    "initial": (
        "84a17606a174a7696e697469616ca8667261676d656e7403a4626f647984a87472616e73666572a6632f332f3137a66e6279"
        "746573ce002625a0ab6368756e6b5f6279746573ce00100000a6646967657374cffffffffffffffffe"
    ),
    "handback": (
        "88a17606a174a868616e646261636ba8667261676d656e7403a57374616d70929202cffedcba987654321029a5636f646563"
        "a462663136ab76616c75655f6279746573ce001e8480a4626f647984a87472616e73666572a6632f332f3137a66e62797465"
        "73ce002625a0ab6368756e6b5f6279746573ce00100000a6646967657374cffffffffffffffffea570726f6f66a0"
    ),
    "goodbye": (
        "86a17606a174a7676f6f64627965a6726561736f6ea866696e6973686564ae747261696e65645f746f6b656e73ce000f4240"
        "ab6c6566745f746f6b656e73cb4028800000000000ae64726f707065645f746f6b656e73cb0000000000000000"
    ),
    "query": "84a17606a174a57175657279a66c61796f7574c2a572656c6179c2",
    "welcome": (
        "88a17606a174a777656c636f6d65a565706f63689202cffedcba9876543210a672756e5f6964a27231a56f7264657205a876"
        "657273696f6e739329ffcd012ca870726f6772657373cb3fd0000000000000a570726f6f66a0"
    ),
    "unwelcome": (
        "85a17606a174a9756e77656c636f6d65a6726561736f6ea66c61796f7574a474657874b074656e736f722061206469666665"
        "7273a5666174616cc3"
    ),
    "donate": "82a17606a174a6646f6e617465",
    "want": "83a17606a174a477616e74a8667261676d656e7403",
    "ack": (
        "87a17606a174a361636ba8667261676d656e7403a468656c6411a66d657267656410a672656d61726ba0a474657874a0"
    ),
    "refused": (
        "86a17606a174a772656675736564a8667261676d656e7403a373657111a6726561736f6ea565706f6368a474657874b16f66"
        "20616e206f6c6465722065706f6368"
    ),
    "call": (
        "85a17606a174a463616c6ca565706f63689202cffedcba9876543210a8667261676d656e7403a776657273696f6e2a"
    ),
    "update": (
        "8ba17606a174a6757064617465a8667261676d656e7403a57374616d70929202cffedcba987654321029a466756c6cc2a563"
        "6f646563a434626974ab76616c75655f6279746573ce001e8480a4626f647984a87472616e73666572a6632f332f3137a66e"
        "6279746573ce002625a0ab6368756e6b5f6279746573ce00100000a6646967657374cffffffffffffffffeac76616c75655f"
        "646967657374cffffffffffffffffba462617365929202cffedcba987654321028a570726f6f66a0"
    ),
    "beat": (
        "87a17606a174a462656174a565706f63689202cffedcba9876543210ab6f70656e5f726f756e64739292032a920429a87665"
        "7273696f6e73922928a6737461626c659228ffa870726f6772657373cb3fe0000000000000"
    ),
    "farewell": (
        "86a17606a174a86661726577656c6ca565706f63689202cffedcba9876543210a866696e6973686564c3a6726561736f6eae"
        "7461726765742072656163686564a876657273696f6e73920708"
    ),
    "status": (
        "83a17606a174a6737461747573a4626f647984a87472616e73666572a6632f332f3137a66e6279746573ce002625a0ab6368"
        "756e6b5f6279746573ce00100000a6646967657374cffffffffffffffffe"
    ),
    "borrow": (
        "85a17606a174a6626f72726f77a8667261676d656e7403a46b696e64aa4164616d572f30663361a57374616d70929202cffe"
        "dcba987654321029"
    ),
    "lend": (
        "85a17606a174a46c656e64a8667261676d656e7403a66e756d62657207a46b696e64aa4164616d572f30663361"
    ),
    "loan": (
        "88a17606a174a46c6f616ea8667261676d656e7403a66e756d62657207a46b696e64aa4164616d572f30663361a57374616d"
        "70929202cffedcba987654321029a5636f646563a462663136a4626f647984a87472616e73666572a6632f332f3137a66e62"
        "79746573ce002625a0ab6368756e6b5f6279746573ce00100000a6646967657374cffffffffffffffffe"
    ),
    "loanover": (
        "85a17606a174a86c6f616e6f766572a8667261676d656e7403a66e756d62657207a6726561736f6ea574616b656e"
    ),
    "receipt": "82a17606a174a772656365697074",
    "bundle": (
        "88a17606a174a662756e646c65a8667261676d656e7403a66e756d62657205a66d6574686f64a3726461a5636f646563a466"
        "703332a76d656d626572739298a475732d30cfffffffffffffffff111018ce00018000cb3fe0000000000000cb41b7d78400"
        "00000098a475732d3107020018ce00018000cb3fd0000000000000cb41b7d78400000000a4626f647984a87472616e736665"
        "72a6632f332f3137a66e6279746573ce002625a0ab6368756e6b5f6279746573ce00100000a6646967657374cfffffffffff"
        "fffffe"
    ),
    "unbundled": (
        "86a17606a174a9756e62756e646c6564a8667261676d656e7403a66e756d62657205a6726561736f6ea46e6f726da4746578"
        "74af75732d303a20746f6f206c61726765"
    ),
    "credit": (
        "86a17606a174a6637265646974a87472616e73666572a6632f332f3137a47570746fce00800000a87265636569766564ce00"
        "100000a76d697373696e6792920102920501"
    ),
    "chunk": (
        "85a17606a174a56368756e6ba87472616e73666572a6632f332f3137a5696e64657802a8636865636b73756dcfffffffffff"
        "fffffd"
    ),
    "gone": (
        "85a17606a174a4676f6e65a87472616e73666572a6632f332f3137a962795f73656e646572c3a6726561736f6ea764726f70"
        "706564"
    ),
    "join": (
        "83a17606a174a46a6f696ea36b6579d928596e654024772d766f3c665676695d613c4e5936543165643a4d246643472a5b49"
        "614c567b684944"
    ),
    "joined": (
        "84a17606a174a66a6f696e6564a672756e5f6964a27231a873657474696e67739292b073796e632e73796e635f706572696f"
        "64a2323492a872756e2e6e616d65a52272756e22"
    ),
}
