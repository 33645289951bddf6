// Runs a model of one of the engine's lock-free words under Relacy, which plays interleavings of
// threads and lets each load see what the memory orders of C++ allow. The right model has to pass;
// the same with its canary, one order weakened or one step out of place, has to fail: else the
// model sees nothing.
//
//   model_NAME [EXECUTIONS]
#pragma once

#include <cstdio>
#include <cstdlib>
#include <streambuf>

// (Relacy is of 2019: it names what C++20 has dropped.)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC system_header
#include <relacy/relacy.hpp>
#pragma GCC diagnostic pop

namespace firn::models {

/// What Relacy says, up to a page of it. (Without memory from operator new: that is Relacy's here.)
class Page : public std::streambuf {
 public:
  const char* words() {
    text_[count_] = 0;
    return text_;
  }

 protected:
  int overflow(int letter) override {
    if (count_ + 1 < sizeof text_) text_[count_++] = static_cast<char>(letter);
    return letter == EOF ? 0 : letter;
  }

 private:
  char text_[6000];
  size_t count_ = 0;
};

template <class Model>
bool passes(unsigned long executions, Page& page) {
  Page progress_page;
  std::ostream said(&page), progress(&progress_page);
  rl::test_params params;
  params.search_type = rl::sched_random;
  params.iteration_count = executions;
  params.output_stream = &said;
  params.progress_stream = &progress;
  return rl::simulate<Model>(params);
}

template <template <bool canary> class Model>
int run(const char* name, const char* canary, int argc, char** argv) {
  const unsigned long executions = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 50'000;
  Page right, wrong;
  if (!passes<Model<false>>(executions, right)) {
    std::printf("%s: a fault was found\n%s\n", name, right.words());
    return 1;
  }
  std::printf("%s: %lu executions, no fault\n", name, executions);
  const bool found = !passes<Model<true>>(executions, wrong);
  std::printf("%s: its canary was %s: %s\n", name, found ? "found" : "NOT found", canary);
  return found ? 0 : 1;
}

}  // namespace firn::models
