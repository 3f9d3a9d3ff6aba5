"""Pictures of problems: one graph, or a grid of them with a legend, as PNG or SVG."""

from .drawing import draw_problem as draw_problem
from .drawing import draw_problems as draw_problems
from .drawing import save as save
