#include "firn/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

using namespace firn;
namespace fs = std::filesystem;

namespace {

class OutputFileTest : public testing::Test {
 protected:
  OutputFileTest() {
    std::string name = fs::temp_directory_path() / "output-file-XXXXXX";
    EXPECT_TRUE(::mkdtemp(name.data()));
    folder = name;
    path = folder / "file";
  }
  ~OutputFileTest() override { fs::remove_all(folder); }

  static std::string text_of(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void put(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

  fs::path folder, path;
};

TEST_F(OutputFileTest, is_written_front_to_back_and_is_its_owner_s_alone) {
  Result<OutputFile> file = OutputFile::create(path);
  ASSERT_TRUE(file) << file.error().text;
  EXPECT_TRUE(file->write("one "));
  EXPECT_EQ(text_of(path), "one ");  // nothing is kept back
  EXPECT_TRUE(file->write("two"));
  EXPECT_TRUE(file->close());
  EXPECT_EQ(text_of(path), "one two");
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(OutputFileTest, follows_no_symbolic_link) {
  put(folder / "others", "precious");
  fs::create_symlink(folder / "others", path);
  const Result<OutputFile> file = OutputFile::create(path);
  ASSERT_FALSE(file);
  EXPECT_NE(file.error().text.find("symbolic link"), std::string::npos) << file.error().text;
  EXPECT_NE(file.error().text.find(path.string()), std::string::npos);
  EXPECT_EQ(text_of(folder / "others"), "precious");
  EXPECT_TRUE(OutputFile::create("/dev/stdout"));
  // Everybody may put links there.
  const std::string shared = "/dev/shm/output-file-" + std::to_string(::getpid());
  if (::symlink((folder / "others").c_str(), shared.c_str()) != 0) return;
  EXPECT_FALSE(OutputFile::create(shared));
  EXPECT_EQ(text_of(folder / "others"), "precious");
  ::unlink(shared.c_str());
}

TEST_F(OutputFileTest, a_pipe_that_nobody_reads_is_not_waited_for) {
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  ::alarm(20);  // who waits is ended
  const Result<OutputFile> none = OutputFile::create(path);
  ::alarm(0);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().text.find("is a pipe without a reader"), std::string::npos)
      << none.error().text;
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  Result<OutputFile> file = OutputFile::create(path);
  ASSERT_TRUE(file) << file.error().text;
  ASSERT_TRUE(file->write("read"));
  char text[8] = {};
  EXPECT_EQ(::read(reader, text, sizeof text), 4);
  ::close(reader);
}

TEST_F(OutputFileTest, that_is_there_is_kept_where_that_is_asked_for) {
  put(path, "before");
  EXPECT_FALSE(OutputFile::create(path, OutputFile::If::exists_fails));
  EXPECT_EQ(text_of(path), "before");
  EXPECT_TRUE(OutputFile::create(path));
  EXPECT_EQ(text_of(path), "");
}

TEST_F(OutputFileTest, whose_number_is_the_program_s_by_now_is_left_alone) {
  Result<OutputFile> file = OutputFile::create(path);
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->write("ours"));
  (void)::syscall(436 /* close_range */, 3u, ~0u, 0u);
  // The program's own file, at every number that was ours.
  const int first = ::open((folder / "theirs").c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_GE(first, 0);
  for (int number = 500; number < 700; ++number) ASSERT_EQ(::dup2(first, number), number);
  const Result<void> written = file->write("more of ours");
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().text.find("closed"), std::string::npos) << written.error().text;
  *file = OutputFile();
  EXPECT_GE(::fcntl(512, F_GETFD), 0);  // nor is theirs closed
  EXPECT_EQ(text_of(folder / "theirs"), "");
  EXPECT_EQ(text_of(path), "ours");
}

TEST_F(OutputFileTest, a_forked_child_adds_nothing) {
  Result<OutputFile> file = OutputFile::create(path);
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->write("parent "));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = !file->write("child ");
    std::exit(refused ? 0 : 1);  // with all that exit() flushes
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(file->write("again"));
  EXPECT_EQ(text_of(path), "parent again");
}

TEST_F(OutputFileTest, is_replaced_whole_or_not_at_all) {
  put(path, "before");
  ASSERT_TRUE(replace_file(path, "after"));
  EXPECT_EQ(text_of(path), "after");
  // A link where it is written beside is not followed either.
  put(folder / "others", "precious");
  fs::create_symlink(folder / "others", path.string() + ".part");
  ASSERT_TRUE(replace_file(path, "again"));
  EXPECT_EQ(text_of(folder / "others"), "precious");
  EXPECT_EQ(text_of(path), "again");
  const Result<void> refused = replace_file(folder / "none" / "file", "text");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().text.find("No such file"), std::string::npos);
  fs::create_directory(folder / "is_folder");
  put(folder / "is_folder" / "x", "");
  EXPECT_FALSE(replace_file(folder / "is_folder", "text"));
  EXPECT_FALSE(fs::exists((folder / "is_folder").string() + ".part"));
}

}  // namespace
