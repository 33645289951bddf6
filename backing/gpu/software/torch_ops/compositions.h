// The operators of compositions.cpp: what to register.
#pragma once

#include <torch/library.h>

#include <functional>
#include <utility>
#include <vector>

namespace firn::torch_ops {

struct Composition {
  template <class Function>
  Composition(const char* operator_name, bool draws_numbers, Function function)
      : name(operator_name),
        draws(draws_numbers),
        add([operator_name, function](torch::Library& library) {
          library.impl(operator_name, torch::dispatch(c10::DispatchKey::CPU, function));
        }) {}

  const char* name;  // within aten: "mm", or with an overload "mm.dtype"
  bool draws;        // random numbers of the device's default generator
  std::function<void(torch::Library&)> add;
};

const std::vector<Composition>& compositions();

}  // namespace firn::torch_ops
