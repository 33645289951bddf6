// Facts of the driver's ABI as the handlers take it: sizes of every handled entry's parameters, and
// layouts of the structures that they look into.
#pragma once

#include <map>
#include <string>

using AbiFacts = std::map<std::string, std::string>;
AbiFacts own_facts();
AbiFacts real_facts();  // with <cuda.h>

template <class Result, class... P>
std::string sizes_of(Result (*)(P...)) {
  std::string words;
  for (size_t size : {sizeof(Result), sizeof(P)...}) words += std::to_string(size) + " ";
  return words;
}
