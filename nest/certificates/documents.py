"""What the files of nest-check hold: objects of the keys that they may have.

Standard library only.
"""
import hashlib
import json
from fractions import Fraction
from os import stat
from re import findall
from stat import S_ISREG

MOST_BYTES = 2**26  # of a file
FLAGS = ("sequence_parallel", "uneven_batches", "even_layers", "idle_devices",
         "distributed_optimizer", "directed", "forward", "reruns")
REAL = ("_ns", "_per_s", "fraction", "sync_overlap", "buffer_bytes",
        "overlap.tp", "overlap.cp", "overlap.ep", "overlap.weights",
        "overlap.gradients")
TEXT = ("schema", "preset", "name", "kind", "source", "target", ".id", "phase",
        "axis", "recompute", "schedule", "algorithms", "layers", "_hash", "software",
        "status", "seal", "plan.overlap", "micro_batch_count", "uniform",
        "one_stage", "sharded_with", "needs.tp", "needs.cp", "needs.ep",
        "needs.weights", "needs.gradients", "granularity", "order", "units",
         "by_device.device", "device.name", "model", "placement")
IDS = ("layers.id", "edges.source", "edges.target", "stages.layers")
# What objects hold: a value, = an object, + a list of values, # of objects,
# % of lists, ? a value or a list of them, @ of lists; nothing depends on
# keys with a star.
KEYS = {name.strip(): dict(findall(r"(\w+)([*=+#%?@]?)", keys))
        for name, keys in (text.split(":") for text in """
problem: schema name* source* preset graph= cluster= job= quantum_ps
time_unit* software* model*; graph: kinds# layers# edges#; edges: source target
bytes_per_sample; activations: recompute kept_bytes working_bytes extra_ns
extra_host_ns static_bytes transfer_ns reruns; layers: id kind;
kinds: name costs#; cluster: name* num_devices device= topology= others#;
others: first count device=;
costs: tp cp ep sequence_parallel samples activations# collectives# forward_ns
backward_ns weight_backward_ns forward_host_ns backward_host_ns weight_bytes
expert_weight_bytes working_bytes measured* by_device#; by_device: device
forward_ns backward_ns extra_ns weight_backward_ns forward_host_ns
backward_host_ns extra_host_ns; topology: kind algorithms levels# nodes# links#
directed order+ units# coordinates= launch_ns; nodes: id kind forward;
links: source target bandwidth_bytes_per_s latency_ns; job: global_batch
micro_batches+ sequence_length* dtype* optimizer= schedule? zero+ replicas+
data_parallel+ pipeline_parallel+ tensor_parallel+ context_parallel+
expert_parallel+ recompute+ selective_operators* sequence_parallel?
uneven_batches virtual_stages+
gradient_sync_overlap weight_backward_fraction model_flops_per_sample*
overlap= overlap_needs= distributed_optimizer granularity uniform+ even_layers
one_stage+ idle_devices zero_with= sharded_with+ micro_batch_count;
overlap: tp cp ep weights gradients; overlap_needs: tp+ cp+ ep+ weights+
gradients+; zero_with: r+ pp+ cp+; levels: name* fan_out latency_ns
bandwidth_bytes_per_s launch_ns peer_bandwidth_bytes_per_s group_fractions#;
collectives: kind phase axis size_bytes count; device: name headroom_bytes*
memory_bytes reserve_bytes hbm_bytes_per_s peak_flops* price_usd_per_hour*;
optimizer: name* weight_bytes gradient_bytes state_bytes buffer_bytes
zero_2_bytes zero_3_bytes;
group_fractions: members fraction; certificate: schema problem_hash plan=
step_time_quanta lower_bound_quanta status proof# seal; plan: schema replicas
micro_batch stages# overlap+ distributed_optimizer virtual_stages placement
order@; stages: layers+ devices
strategy= strategies#; strategy: dp tp cp ep sequence_parallel zero recompute;
proof: replicas micro_batch prices% labels""".split(";"))}
KEYS["strategies"] = KEYS["strategy"]
# Objects with keys of their own, all of a mark.
FREE = {"units": "", "coordinates": "+"}
# What a mark stands for, and at last the mark of what a list holds.
FORMS = {"": ("a value",), "=": ("an object",), "+": ("a list", ""),
         "#": ("a list", "="), "%": ("a list", "+"),
         "?": ("a value", "a list", ""), "@": ("a value", "a list", "+"),
         "-": ("a value", "a list", "an object", "-")}
ONLY = {"problem.preset": ["standard"],
        "job.schedule": ["1f1b", "gpipe", "zb-h1", "zb-v", "any"],
        "topology.kind": ["hierarchy", "graph"],
        "topology.algorithms": ["nccl"],
        "collectives.kind": ["all-reduce", "all-gather", "reduce-scatter",
                             "all-to-all"],
        "collectives.phase": ["forward", "backward"],
        "collectives.axis": ["tp", "cp", "dp", "ep"]}

class BadInputError(Exception):
    """A file is not what it should be, or asks for what is not covered."""

def typed(value, where):
    """Return a value, exact, if it is of the type and size it may be of."""
    if type(value) in (int, float) and not 0 <= value <= 1e21:
        raise BadInputError(f"{where}: expected 0 to 1e21, got {value}")
    flag = where.endswith(FLAGS)
    text = where.endswith(TEXT) and not flag
    if type(value) is int and where.endswith(IDS):
        text = False  # ids are text or whole numbers
    if ((type(value) is bool) != flag or (type(value) is str) != text
            or (type(value) is float and not where.endswith(REAL))):
        kind = "true or false" if flag else "text" if text else "a number"
        if not (flag or text or where.endswith(REAL)):
            kind = "a whole number"
        raise BadInputError(f"{where}: expected {kind}, got {str(value)[:60]}")
    return Fraction(value) if type(value) is float else value

def covered(value, where, place, mark="="):
    """Return a value with fractions for floats, if all of it is covered."""
    kind = {list: "a list", dict: "an object"}.get(type(value), "a value")
    if value is not None and kind not in FORMS[mark]:
        raise BadInputError(f"{where}: expected {FORMS[mark][0]}, got "
                            f"{str(value)[:60]}; write it as nest does")
    if kind == "a list":
        return [covered(x, where, place, FORMS[mark][-1]) for x in value]
    if kind == "a value":
        return typed(value, where)
    if (free := FREE.get(place)) is not None:
        return {key: covered(x, where, None, free) for key, x in value.items()}
    own, found = KEYS[place] if place else dict.fromkeys(value, "-"), {}
    for key, x in value.items():
        only = ONLY.get(f"{place}.{key}", [x] if key in own else [])
        if any(y not in only for y in (
                x if type(x) is list and x not in only else [x])):
            text = f"{' or '.join(map(str, only)) or 'nothing'}, for a "
            text += f"certificate, got {str(x)[:60]}; change or remove it"
            raise BadInputError(f"{where}.{key}: expected {text}")
        found[key] = own[key] == "*" or covered(
            x, f"{where}.{key}", key if place else place, own[key])
    return found

def distinct(pairs):
    """Return an object, if no key is there twice."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("an object with a key twice")
    return dict(pairs)

def digest(value):
    """Return the hash of a document without its seal, as nest writes it."""
    value = {key: x for key, x in value.items() if key != "seal"}
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

def parse(data, where):
    """Return what a JSON text holds, and its hash."""
    try:
        if len(data) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES} bytes")
        value = json.loads(data, object_pairs_hook=distinct)
        schema = str(value.get("schema"))
        place = {"nest-problem/1": "problem",
                 "nest-certificate/1": "certificate"}.get(schema)
        return covered(value, where, place), digest(value)
    except (AttributeError, ValueError, RecursionError) as error:
        deep = type(error) is RecursionError and "too many nested brackets"
        text = " ".join((deep or str(error)).partition(";")[0].split())[:200]
        raise BadInputError(f"{where}: expected JSON, got {text}") from error

def read(path):
    """Return the bytes of a file; a pipe or a device may never end."""
    if not S_ISREG(stat(path).st_mode):
        raise BadInputError(f"{path}: expected a regular file, got another "
                            "kind; copy it to a file")
    with open(path, "rb") as file:
        return file.read(MOST_BYTES + 1)
