# npusim_metal: Apple's metal-cpp, and what it calls. There is always one on macOS; elsewhere only
# for tests, over the software Metal device (tests/softmetal), and never in what is installed.
if(NOT NPUSIM_METAL)
  return()
endif()
if(APPLE)
  if(NOT NPUSIM_METAL_CPP)
    include(FetchContent)
    set(NPUSIM_METAL_CPP_VERSION 26)
    FetchContent_Declare(metal_cpp
      URL https://developer.apple.com/metal/cpp/files/metal-cpp_${NPUSIM_METAL_CPP_VERSION}.zip
      URL_HASH SHA256=4df3c078b9aadcb516212e9cb03004cbc5ce9a3e9c068fa3144d021db585a3a4
      DOWNLOAD_EXTRACT_TIMESTAMP ON)
    FetchContent_MakeAvailable(metal_cpp)
    set(NPUSIM_METAL_CPP ${metal_cpp_SOURCE_DIR})
  endif()
elseif(NOT NPUSIM_METAL_CPP OR NOT NPUSIM_SOFTMETAL)
  return()
endif()
if(NOT EXISTS ${NPUSIM_METAL_CPP}/Metal/Metal.hpp)
  message(FATAL_ERROR "NPUSIM_METAL_CPP is the folder of Metal/Metal.hpp: ${NPUSIM_METAL_CPP}")
endif()

# MPS is Objective-C alone. Objects are counted by hand, as GCC's runtime does not count them.
set(objective_flags -xobjective-c++ -fno-objc-arc)
if(NOT APPLE)
  list(APPEND objective_flags -fobjc-runtime=gcc)
endif()
set_source_files_properties(cpp/metal/mps.mm PROPERTIES LANGUAGE CXX SKIP_PRECOMPILE_HEADERS ON
                                                        COMPILE_OPTIONS "${objective_flags}")

add_library(npusim_metal INTERFACE)
target_include_directories(npusim_metal SYSTEM INTERFACE ${NPUSIM_METAL_CPP})
target_compile_definitions(npusim_metal INTERFACE METALCPP_SYMBOL_VISIBILITY_HIDDEN)
if(APPLE)
  # Without CoreGraphics, programs of the command line are shown no devices.
  foreach(framework IN ITEMS Foundation Metal MetalPerformanceShaders QuartzCore CoreGraphics)
    target_link_libraries(npusim_metal INTERFACE "-framework ${framework}")
  endforeach()
else()
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "Metal needs clang: -DCMAKE_CXX_COMPILER=…")
  endif()
  target_include_directories(npusim_metal SYSTEM INTERFACE
                             ${CMAKE_CURRENT_SOURCE_DIR}/tests/softmetal/platform)
  # metal-cpp lists devices where it is told the oldest macOS, as Apple's headers do.
  target_compile_definitions(npusim_metal INTERFACE __MAC_OS_X_VERSION_MIN_REQUIRED=140000)
  target_compile_options(npusim_metal INTERFACE -fblocks)
  find_library(BLOCKS_LIBRARY NAMES BlocksRuntime REQUIRED)
  find_library(SOFTMETAL_LIBRARY NAMES softmetal PATHS ${NPUSIM_SOFTMETAL} NO_DEFAULT_PATH REQUIRED)
  # GCC's Objective-C runtime, which lies beside its compiler.
  file(GLOB gcc_folders /usr/lib/gcc/*/*)
  find_library(OBJC_LIBRARY NAMES objc HINTS ${gcc_folders} REQUIRED)
  target_link_libraries(npusim_metal INTERFACE ${SOFTMETAL_LIBRARY} ${BLOCKS_LIBRARY}
                                               ${OBJC_LIBRARY})
endif()
