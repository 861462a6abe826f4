"""Public test tools: deterministic ids and clock, a scripted provider, drive helpers, derived crash points.

Everything a test of an application needs to stop its agent at any effect, look, and go on.
"""

from ..providers.faux import SCRIPTED_API as SCRIPTED_API
from ..providers.faux import SCRIPTED_MODEL as SCRIPTED_MODEL
from ..providers.faux import ScriptedProvider as ScriptedProvider
from ..providers.faux import ScriptedRequest as ScriptedRequest
from ..providers.faux import answer as answer
from ..providers.faux import call as call
from ..providers.faux import scripted_models as scripted_models
from .clock import ManualClock as ManualClock
from .crash import CrashPoint as CrashPoint
from .crash import RepoFactory as RepoFactory
from .crash import Scenario as Scenario
from .crash import crash_points as crash_points
from .drive import drive_until as drive_until
from .drive import start as start
from .fixed_point import check_fixed_point as check_fixed_point
from .ids import DeterministicIds as DeterministicIds
from .observing import ObservedRequest as ObservedRequest
from .observing import Observer as Observer
from .observing import observe as observe
from .trace import Trace as Trace
from .trace import log_lines as log_lines
from .world import World as World
