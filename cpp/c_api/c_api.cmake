# libnpusim: the C interface of include/npusim/npusim.h over the runtime, as a shared library that
# exports nothing else and as a static one, with what find_package and pkg-config need.
#
#   cmake -S . -B build/sdk -DNPUSIM_SDK=ON -DNPUSIM_PYTHON=OFF && cmake --build build/sdk
#   cmake --install build/sdk --prefix PREFIX
#
# A smaller library: -DNPUSIM_CUDA=OFF -DNPUSIM_LANGUAGE_MODELS=OFF -DNPUSIM_SERVE=OFF
# -DNPUSIM_ISAS=avx2. It has the same functions; those of what is left out return
# NPUSIM_ERROR_UNSUPPORTED.
file(GLOB c_api_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cpp/c_api/*.cpp)
if(NPUSIM_LANGUAGE_MODELS)
  list(FILTER c_api_sources EXCLUDE REGEX "language_model_absent")
else()
  list(FILTER c_api_sources EXCLUDE REGEX "language_model\\.cpp")
endif()
if(NPUSIM_SERVE AND NPUSIM_LANGUAGE_MODELS)
  list(FILTER c_api_sources EXCLUDE REGEX "engine_absent\\.cpp")
else()
  list(FILTER c_api_sources EXCLUDE REGEX "/engine\\.cpp")
endif()
file(STRINGS ${PROJECT_SOURCE_DIR}/include/npusim/npusim.h abi_line REGEX "define NPUSIM_ABI_VERSION")
string(REGEX MATCH "[0-9]+" abi_version "${abi_line}")
if(NOT NPUSIM_SMALL)
  set(called_of_c executor call handles buffer state)  # as in the runtime
endif()
foreach(source IN LISTS c_api_sources)
  cmake_path(GET source STEM name)
  set(optimisation "${size_optimisation}")
  if(name IN_LIST called_of_c)
    set(optimisation "${call_optimisation}")
  endif()
  set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${optimisation}")
endforeach()

add_library(npusim_c_api OBJECT ${c_api_sources})
target_link_libraries(npusim_c_api PRIVATE npusim_flags)
target_compile_definitions(npusim_c_api PRIVATE NPUSIM_VERSION="${PROJECT_VERSION}"
                           $<$<PLATFORM_ID:Windows>:NPUSIM_BUILDS_SHARED>)
if(NOT MSVC)
  # What abidiff compares are the types of the interface; `cmake --install --strip` leaves them out.
  # Where this was built is no part of it: two builds of one commit are the same bytes.
  target_compile_options(npusim_c_api PRIVATE -g -ffile-prefix-map=${PROJECT_BINARY_DIR}=build
                         -ffile-prefix-map=${PROJECT_SOURCE_DIR}=npusim)
endif()

add_library(npusim_shared SHARED $<TARGET_OBJECTS:npusim_c_api>)
set_target_properties(npusim_shared PROPERTIES OUTPUT_NAME npusim EXPORT_NAME npusim
                      VERSION ${PROJECT_VERSION} SOVERSION ${abi_version})
target_include_directories(npusim_shared PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(npusim_shared PRIVATE $<BUILD_INTERFACE:npusim_runtime>)
if(APPLE)
  target_link_options(npusim_shared PRIVATE -Wl,-exported_symbol,_npusim_* -Wl,-dead_strip)
else()
  set(exports ${PROJECT_SOURCE_DIR}/cpp/c_api/exports.map)
  if(NPUSIM_WHEEL)
    set(exports ${PROJECT_SOURCE_DIR}/cpp/c_api/exports_to_module.map)
    # An application may have loaded another libnpusim.so.1; its own name keeps the module's apart.
    set_target_properties(npusim_shared PROPERTIES OUTPUT_NAME npusim-python VERSION ${abi_version})
    # Calls inside of the library need no table; Zig's linker has only the wider -Bsymbolic.
    check_linker_flag(CXX -Wl,-Bsymbolic-functions NPUSIM_BINDS_FUNCTIONS)
    if(NPUSIM_BINDS_FUNCTIONS)
      target_link_options(npusim_shared PRIVATE -Wl,-Bsymbolic-functions)
    endif()
    # All of the runtime, also what the C interface itself does not call.
    target_sources(npusim_shared PRIVATE $<TARGET_OBJECTS:npusim_runtime>)
  endif()
  target_link_options(npusim_shared PRIVATE -Wl,--gc-sections -Wl,--version-script=${exports})
  set_target_properties(npusim_shared PROPERTIES LINK_DEPENDS ${exports})
  if(NOT NPUSIM_SANITIZE)
    target_link_options(npusim_shared PRIVATE -Wl,--no-undefined)
  endif()
endif()
add_library(npusim::npusim ALIAS npusim_shared)

# One archive with all that the shared library is made of.
add_library(npusim_static STATIC $<TARGET_OBJECTS:npusim_c_api> $<TARGET_OBJECTS:npusim_runtime>
            ${kernel_objects})
set_target_properties(npusim_static PROPERTIES OUTPUT_NAME npusim EXPORT_NAME static
                      LINKER_LANGUAGE CXX)
target_include_directories(npusim_static PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_definitions(npusim_static INTERFACE NPUSIM_STATIC)
target_link_libraries(npusim_static PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
if(NPUSIM_SANITIZE)
  target_link_options(npusim_static PUBLIC $<BUILD_INTERFACE:-fsanitize=${NPUSIM_SANITIZE}>)
endif()
if(TARGET npusim_metal)
  target_link_libraries(npusim_static PUBLIC $<BUILD_INTERFACE:npusim_metal>)
endif()
add_library(npusim::static ALIAS npusim_static)
if(NOT NPUSIM_SDK)
  set_target_properties(npusim_static PROPERTIES EXCLUDE_FROM_ALL ON)  # the tests need it not
endif()

if(NPUSIM_SDK OR NPUSIM_WHEEL)
  include(CMakePackageConfigHelpers)
  set(package ${CMAKE_INSTALL_LIBDIR}/cmake/npusim)
  if(NPUSIM_WHEEL)
    # A wheel has no links: one file, which CMake's package names in full.
    install(TARGETS npusim_shared EXPORT npusim LIBRARY NAMELINK_SKIP)
  else()
    install(TARGETS npusim_shared npusim_static EXPORT npusim)
  endif()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/npusim TYPE INCLUDE)
  install(EXPORT npusim NAMESPACE npusim:: FILE npusimTargets.cmake DESTINATION ${package})
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cpp/c_api/npusimConfig.cmake.in
                                npusimConfig.cmake INSTALL_DESTINATION ${package})
  write_basic_package_version_file(npusimConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/npusimConfig.cmake
                ${CMAKE_CURRENT_BINARY_DIR}/npusimConfigVersion.cmake DESTINATION ${package})
  # From where the .pc file lies, however deep (lib/x86_64-linux-gnu/pkgconfig).
  file(RELATIVE_PATH pc_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
  string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
  set(pc_library -lnpusim)
  if(NPUSIM_WHEEL)  # whose library has a name of its own, and lies where no loader looks
    set(pc_library "-l:libnpusim-python.so.${abi_version} -Wl,-rpath,\${libdir}")
  endif()
  configure_file(${PROJECT_SOURCE_DIR}/cpp/c_api/npusim.pc.in npusim.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/npusim.pc
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
