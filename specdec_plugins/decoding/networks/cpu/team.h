// The threads that work on one pass, and the instruction sets to choose from.

#pragma once

#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "isa.h"

namespace specdec {

// Those that this processor can run, the best first (module.cpp).
std::vector<const Isa*> usable();

inline const Isa& isa_of(const std::string& name) {
  for (const Isa* isa : usable())
    if (name.empty() || name == isa->name) return *isa;
  throw std::invalid_argument("this processor cannot run " + name);
}

// Calls work(thread, threads) on every thread of a team. Python's other threads go on meanwhile.
template <typename Work>
void in_team(int threads, const Work& work) {
  pybind11::gil_scoped_release released;
#ifdef _OPENMP
#pragma omp parallel num_threads(threads) if (threads > 1)
  work(omp_get_thread_num(), omp_get_num_threads());
#else
  (void)threads;
  work(0, 1);
#endif
}

}  // namespace specdec
