"""Schedules and samplers."""

from ostinato.loop.sampling.library import LibrarySampler as LibrarySampler
from ostinato.loop.sampling.library import LibraryScheduler as LibraryScheduler
from ostinato.loop.sampling.library import MemoryValue as MemoryValue
from ostinato.loop.sampling.library import SchedulerMemory as SchedulerMemory
from ostinato.loop.sampling.sampler import Sampler as Sampler
from ostinato.loop.sampling.schedules import Schedule as Schedule
from ostinato.loop.sampling.schedules import flow_schedule as flow_schedule
from ostinato.loop.sampling.schedules import shift_sigmas as shift_sigmas
from ostinato.loop.sampling.steppers import FlowEuler as FlowEuler
from ostinato.loop.sampling.steppers import FlowRenoise as FlowRenoise
from ostinato.loop.sampling.steppers import sampler_by_name as sampler_by_name
from ostinato.loop.sampling.steppers import unknown_sampler as unknown_sampler
