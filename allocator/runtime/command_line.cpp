#include "allocator/runtime/command_line.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace firn {

std::string command_line(pid_t process) {
  std::ifstream in("/proc/" + std::to_string(process) + "/cmdline", std::ios::binary);
  std::ostringstream read;
  read << in.rdbuf();  // an iterator over the buffer throws if reading fails
  std::string words = read.str();
  while (!words.empty() && words.back() == '\0') words.pop_back();
  std::replace(words.begin(), words.end(), '\0', ' ');
  return words;
}

}  // namespace firn
