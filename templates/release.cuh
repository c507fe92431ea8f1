#pragma once
// When a kernel lets the next grid of its chain start: at its own start, right after its wait for the grids
// before it, or not before its end.
enum class Release { start, wait, end };
