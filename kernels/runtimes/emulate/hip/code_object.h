// What the HIP runtime has to know of an AMD code object: that it is one, for which architecture, and which kernels are
// in it. Layout: the ELF64 specification, and "ELF Code Object" in LLVM's User Guide for AMDGPU Backend.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace waveproof {

class CodeObject {
 public:
  explicit CodeObject(std::string image) : image_(std::move(image)) {}

  const std::string& image() const { return image_; }

  // Empty where the image is an AMDGPU code object of 64 bits that is complete, else what is wrong with it.
  std::string defect() const {
    if (image_.size() < sizeof(Header) || image_.compare(0, 4, "\x7f" "ELF") != 0) return "not an ELF file";
    if (image_[4] != 2 || image_[5] != 1) return "not a little endian ELF of 64 bits";
    const Header header = at<Header>(0);
    if (header.machine != kMachineAmdgpu) return "ELF for machine " + std::to_string(header.machine) + ", not AMDGPU (224)";
    if (header.section_entry_bytes != sizeof(Section)) return "section headers of an unknown size";
    if (header.section_offset + std::uint64_t{header.section_count} * sizeof(Section) > image_.size())
      return "cut short: the section headers lie beyond its end";
    for (unsigned index = 0; index < header.section_count; ++index) {
      const Section section = section_at(index);
      if (section.type != kNoBits && (section.offset > image_.size() || section.bytes > image_.size() - section.offset))
        return "cut short: section " + std::to_string(index) + " lies beyond its end";
      if (is_symbol_table(section) && section.link >= header.section_count) return "a symbol table without names";
    }
    return "";
  }

  // EF_AMDGPU_MACH of e_flags. Only for images without a defect, like what follows.
  unsigned machine() const { return at<Header>(0).flags & 0xff; }

  // A kernel is a symbol NAME.kd for its descriptor.
  bool has_kernel(std::string_view name) const {
    const Header header = at<Header>(0);
    const std::string descriptor = std::string(name) + ".kd";
    for (unsigned index = 0; index < header.section_count; ++index) {
      const Section table = section_at(index);
      if (!is_symbol_table(table)) continue;
      const Section names = section_at(table.link);
      for (std::uint64_t symbol = 0; symbol + sizeof(Symbol) <= table.bytes; symbol += sizeof(Symbol)) {
        const std::uint32_t start = at<Symbol>(table.offset + symbol).name;
        if (start >= names.bytes) continue;
        const std::string_view tail(image_.data() + names.offset + start, names.bytes - start);
        if (tail.substr(0, tail.find('\0')) == descriptor) return true;
      }
    }
    return false;
  }

  // Bytes of the image that starts at `memory`, from its section headers; none where that is no ELF of 64 bits.
  static std::optional<std::uint64_t> extent(const void* memory) {
    Header header;
    if (std::memcmp(memory, "\x7f" "ELF\x02\x01", 6) != 0) return std::nullopt;
    std::memcpy(&header, memory, sizeof header);
    std::uint64_t end = header.section_offset + std::uint64_t{header.section_count} * sizeof(Section);
    for (unsigned index = 0; index < header.section_count; ++index) {
      Section section;
      std::memcpy(&section, static_cast<const char*>(memory) + header.section_offset + index * sizeof section, sizeof section);
      if (section.type != kNoBits && section.offset + section.bytes > end) end = section.offset + section.bytes;
    }
    return end;
  }

 private:
  struct Header {
    unsigned char identity[16];
    std::uint16_t type, machine;
    std::uint32_t version;
    std::uint64_t entry, program_offset, section_offset;
    std::uint32_t flags;
    std::uint16_t header_bytes, program_entry_bytes, program_count, section_entry_bytes, section_count, name_section;
  };
  struct Section {
    std::uint32_t name, type;
    std::uint64_t flags, address, offset, bytes;
    std::uint32_t link, info;
    std::uint64_t alignment, entry_bytes;
  };
  struct Symbol {
    std::uint32_t name;
    unsigned char info, other;
    std::uint16_t section;
    std::uint64_t value, bytes;
  };
  static_assert(sizeof(Header) == 64 && sizeof(Section) == 64 && sizeof(Symbol) == 24);

  static constexpr unsigned kMachineAmdgpu = 224, kSymbolTable = 2, kNoBits = 8, kDynamicSymbolTable = 11;

  static bool is_symbol_table(const Section& section) {
    return section.type == kSymbolTable || section.type == kDynamicSymbolTable;
  }

  template <class T>
  T at(std::uint64_t offset) const {
    T value;
    std::memcpy(&value, image_.data() + offset, sizeof value);
    return value;
  }

  Section section_at(unsigned index) const {
    return at<Section>(at<Header>(0).section_offset + index * sizeof(Section));
  }

  std::string image_;
};

}  // namespace waveproof
