"""Parity: what a model and its runtime are held to, measured by gates that fail closed."""

from ostinato.parity.aligner import CallRecord as CallRecord
from ostinato.parity.aligner import ParityAligner as ParityAligner
from ostinato.parity.aligner import replay as replay
from ostinato.parity.compare import compare_call as compare_call
from ostinato.parity.compare import first_divergence as first_divergence
from ostinato.parity.gate import GateResult as GateResult
from ostinato.parity.ladder import Verification as Verification
from ostinato.parity.ladder import report_of as report_of
from ostinato.parity.ladder import verify as verify
from ostinato.parity.perturb import Perturbation as Perturbation
from ostinato.parity.subject import VerifyOptions as VerifyOptions
