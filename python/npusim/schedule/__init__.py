"""Schedules: how a described machine computes the commands of a program."""

from npusim.schedule.machine import searched
from npusim.schedule.plan import check_capacity, npu_of, schedule_program
from npusim.schedule.schedule import OperandPlan, Schedule, Sizes
from npusim.schedule.search import best_schedule, ideal_cycles
from npusim.schedule.section import schedules_of, target_of, with_simulation
from npusim.schedule.work import Part, Work, conv_work, product_work, works_of

__all__ = [
    "OperandPlan",
    "Part",
    "Schedule",
    "Sizes",
    "Work",
    "best_schedule",
    "check_capacity",
    "conv_work",
    "ideal_cycles",
    "npu_of",
    "product_work",
    "schedule_program",
    "schedules_of",
    "searched",
    "target_of",
    "with_simulation",
    "works_of",
]
